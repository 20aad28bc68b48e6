"""A Llama and its tokenizer in one GGUF file, as packages of small models carry them."""

import json

import gguf
import numpy as np
from hf_tokenizers import PAD, START, STOP

TEMPLATE = "{{ messages[0].content }}!"


def write_packed(path, model, tokenizer):
    """Write both to a file, in which the rows of queries and keys are interleaved."""
    config = model.config
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_vocab_size(config.vocab_size)
    _add_tokenizer(writer, tokenizer)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for name, weight in model.state_dict().items():
        array = weight.numpy()
        if "q_proj" in name or "k_proj" in name:
            halves = array.reshape(-1, 2, config.head_dim // 2, array.shape[1])
            array = np.ascontiguousarray(halves.swapaxes(1, 2).reshape(array.shape))
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight",)), array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_tokenizer(writer, tokenizer):
    words = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().get)
    merges = json.loads(tokenizer.backend_tokenizer.to_str())["model"]["merges"]
    special, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(words)
    writer.add_token_types([special if at <= STOP else normal for at in range(len(words))])
    writer.add_token_merges([" ".join(pair) for pair in merges])
    writer.add_pad_token_id(PAD)
    writer.add_bos_token_id(START)
    writer.add_eos_token_id(STOP)
    writer.add_chat_template(TEMPLATE)
