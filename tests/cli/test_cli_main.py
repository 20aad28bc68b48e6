import json
import subprocess
import sys
from importlib.metadata import version

import pytest

from kvstead.cli.main import main
from kvstead.model import preset_names


def test_version_is_that_of_the_package(kvstead):
    """`--version` prints what is installed."""
    ended = kvstead("--version")
    assert (ended.code, ended.out) == (0, f"kvstead {version('kvstead')}\n")


def test_help_names_the_commands_and_loads_nothing_heavy():
    """Help of every command works without torch, transformers, numpy, numba or matplotlib being imported."""
    program = (
        "import sys\n"
        "from kvstead.cli.main import main\n"
        "for command in [], ['replay'], ['models'], ['generate'], ['chat'], ['trace'], ['trace', 'make'],"
        " ['trace', 'stats']:\n"
        "    try:\n"
        "        main([*command, '--help'])\n"
        "    except SystemExit as ended:\n"
        "        assert not ended.code, ended.code\n"
        "heavy = {'torch', 'transformers', 'numpy', 'numba', 'matplotlib'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)  # noqa: S603 - our own text
    assert ended.returncode == 0, ended.stderr
    for command in ("replay", "models", "generate", "chat", "trace", "make", "stats"):
        assert command in ended.stdout


def test_an_unknown_command_is_refused(kvstead):
    """A command that does not exist ends with exit code 2 and is named."""
    ended = kvstead("repaly")
    assert ended.code == 2
    assert "repaly" in ended.err


def test_an_error_of_the_system_is_one_line(kvstead, monkeypatch):
    """An `OSError` without a file name still becomes one line and exit code 2."""

    def fail(*_arguments, **_keywords):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("kvstead.model.preset_names", fail)
    ended = kvstead("models")
    assert (ended.code, ended.out) == (2, "")
    assert ended.err == "kvstead: a file: No space left on device. Check the path and its permissions.\n"


def test_models_lists_every_preset(kvstead):
    """One line a bundled model, with its figures."""
    ended = kvstead("models")
    assert ended.code == 0
    lines = {line.split()[0]: line for line in ended.out.splitlines() if line.strip()}
    assert set(preset_names()) <= set(lines)
    assert lines["llama-3.1-8b"].split() == ["llama-3.1-8b", "8.03B", "131,072", "config"]
    assert max(map(len, ended.out.splitlines())) <= 80


def test_models_shows_one_in_detail(kvstead):
    """A name shows layers, bytes, window and source; dtype and ranks scale the bytes."""
    ended = kvstead("models", "gemma-3-12b")
    assert "40 window + 8 full" in ended.out
    assert "65,536 full + 327,680 window" in ended.out
    assert "1,024 tokens, sliding" in ended.out
    assert "source" in ended.out
    halved = kvstead("models", "gemma-3-12b", "--dtype", "float8_e4m3fn", "--tp", "2")
    assert "16,384 full + 81,920 window" in halved.out


def test_models_lists_those_that_have_a_part_of_a_name(kvstead):
    """A part of names is a filter; the JSON has the figures of each, exactly."""
    ended = kvstead("models", "gpt-oss")
    assert {line.split()[0] for line in ended.out.splitlines() if "gpt" in line} == {"gpt-oss-20b", "gpt-oss-120b"}
    listed = kvstead("models", "gpt-oss", "--json").json["models"]
    assert [model["bytes_per_token"] for model in listed] == [
        {"full": 36_864, "window": 36_864},
        {"full": 24_576, "window": 24_576},
    ]
    one = kvstead("models", "gpt-oss-20b", "--json").json
    assert one["arithmetic"] == ["12 layers x 2,048 = 24,576 window", "12 layers x 2,048 = 24,576 full"]
    assert (one["window"], one["is_replayed"]) == (128, True)


def test_a_model_that_cannot_be_divided_does_not_fail_the_list(kvstead):
    """Models whose heads do not divide among the ranks are left out, and told."""
    ended = kvstead("models", "--tp", 3)
    assert ended.code == 0
    assert "llama-3.1-8b" in ended.out or "llama-3.1-8b" in ended.err
    assert "left out: bamba-9b: 128 Mamba heads do not divide among 3" in ended.err


def test_gpus_are_listed_with_their_sources(kvstead):
    """Peaks, bandwidth, memory and where they are published."""
    ended = kvstead("gpus")
    assert ended.code == 0
    assert "NVIDIA H100 data sheet, SXM" in ended.out
    found = {each["name"]: each for each in kvstead("gpus", "--json").json["gpus"]}
    assert found["h100-sxm"]["memory_bytes"] == 80 * 10**9


def test_an_unknown_class_is_told(kvstead, tmp_path):
    """A configuration of an unknown model_type is read like llama, and the table says so; no KV heads are refused."""
    config = tmp_path / "config.json"
    keys = {"model_type": "brandnew", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4}
    keys |= {"num_key_value_heads": 2, "vocab_size": 100, "intermediate_size": 128, "tie_word_embeddings": True}
    config.write_text(json.dumps(keys))
    assert "model_type 'brandnew' is unknown" in " ".join(kvstead("models", config).out.split())
    config.write_text(json.dumps(keys | {"num_key_value_heads": 0}))
    ended = kvstead("models", config)
    assert ended.code == 2
    assert "num_key_value_heads is 0" in ended.err


def test_models_reads_a_configuration_file(kvstead, tmp_path):
    """A configuration file is shown like a bundled model, and its path is its source."""
    config = tmp_path / "config.json"
    config.write_text(
        '{"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, '
        '"num_key_value_heads": 2, "vocab_size": 100, "intermediate_size": 128, "tie_word_embeddings": true}'
    )
    ended = kvstead("models", config)
    assert ended.code == 0, ended.err
    assert "2 full" in ended.out
    assert "config.json" in ended.out


def test_an_unknown_model_is_one_line(kvstead):
    """A name that is neither bundled nor a file is named in one line, with close ones."""
    ended = kvstead("models", "llama-3.1-9b")
    assert ended.code == 2
    assert ended.err.startswith("kvstead: 'llama-3.1-9b'")
    assert "llama-3.1-8b" in ended.err
    assert ended.err.count("\n") == 1


def test_closed_standard_streams_are_one_line_or_empty(kvstead, monkeypatch):
    """Without an input there is nothing to read; without an output nothing runs."""
    monkeypatch.setattr(sys, "stdin", None)
    assert "standard input is empty" in kvstead("trace", "stats", "-").err
    monkeypatch.setattr(sys, "stdout", None)
    with pytest.raises(SystemExit) as ended:
        main(["models"])
    assert ended.value.code == 2
