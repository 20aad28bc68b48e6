"""The bundled models against figures measured on the real ones."""

import csv
import json
from pathlib import Path

import pytest

from kvstead.errors import LayoutError
from kvstead.model import CacheKind, ComputeProfile, ModelLayout, load_layout, preset_names, preset_source
from kvstead.model.catalog import preset_config

_TABLE = Path(__file__).with_name("expected_models.tsv")
_SHARED = Path(__file__).resolve().parents[2] / ".." / "shared" / "models"


def _rows():
    with _TABLE.open(encoding="utf-8") as table:
        return list(csv.DictReader(table, delimiter="\t"))


_each_model = pytest.mark.parametrize("row", _rows(), ids=lambda row: row["model"])


def test_every_model_of_the_table_is_bundled():
    """The bundled names are those of the table, 41 of them."""
    assert preset_names() == tuple(sorted(row["model"] for row in _rows()))
    assert len(preset_names()) == 41


@pytest.mark.skipif(not _SHARED.exists(), reason="the measured table is not at hand")
def test_the_copies_equal_their_originals():
    """The table and the configurations in this repository are those that were measured."""
    assert _TABLE.read_text(encoding="utf-8") == (_SHARED / "EXPECTED.tsv").read_text(encoding="utf-8")
    for name in preset_names():
        assert preset_config(name) == json.loads((_SHARED / f"{name}.json").read_text(encoding="utf-8"))


@_each_model
def test_bytes_per_token_and_window_are_the_measured_ones(row):
    """Full and windowed bytes per token, the window and its kind equal what the real model's cache held."""
    layout = ModelLayout.preset(row["model"])
    assert layout.full_bytes_per_token == int(row["full_bytes_per_token"])
    assert layout.window_bytes_per_token == int(row["window_bytes_per_token"])
    assert layout.window == (int(row["window"]) if row["window"] else None)
    assert layout.window_kind == (row["window_kind"] or None)


@_each_model
def test_state_bytes_are_the_measured_ones(row):
    """A state slot has the measured size, with kernel-1 columns of history and with all of them."""
    name = row["model"]
    assert ModelLayout.preset(name).state_bytes == int(row["state_bytes_conv_k_minus_1"])
    assert ModelLayout.preset(name, conv_columns="kernel").state_bytes == int(row["state_bytes_conv_k"])


@_each_model
def test_number_of_layers_by_kind_is_the_measured_one(row):
    """The numbers of full, window, state, mixed, sharing and cacheless layers are those of the table."""
    counts = {}
    for part in row["layers"].replace("full_attention (owners)", "full").split(" + "):
        number, _, words = part.partition(" ")
        counts[words] = int(number)
    layers = ModelLayout.preset(row["model"]).layers
    windowed = [layer for layer in layers if {CacheKind.WINDOW, CacheKind.CHUNK} & set(layer.kinds)]
    both = [layer for layer in layers if layer.tokens and layer.state]
    whole = [layer for layer in layers if layer.tokens and not layer.tokens.span and not layer.state]
    stateful = [layer for layer in layers if layer.state and not layer.tokens]
    nothing = [layer for layer in layers if not layer.kinds]
    assert len(layers) == sum(counts.values())
    assert len(windowed) == counts.get("sliding", 0) + counts.get("chunked", 0)
    assert len(both) == counts.get("attention+recurrent", 0)
    assert len(whole) == counts.get("full", 0)
    assert len(stateful) == counts.get("recurrent", 0) + counts.get("conv", 0)
    assert len(nothing) == counts.get("no cache", 0) + counts.get("reuse", 0)


@_each_model
def test_parameters_are_within_a_thousandth_of_the_real_model(row):
    """The counted parameters miss those of the built model by less than 0.1 %; a token passes through no more."""
    profile = ComputeProfile.preset(row["model"])
    assert profile.total_params == pytest.approx(int(row["parameters"]), rel=1e-3)
    assert 0 < profile.active_params <= profile.total_params


@_each_model
def test_each_model_names_its_source_and_evidence(row):
    """Every bundled model says how good its evidence is and where its numbers come from."""
    source = preset_source(row["model"])
    assert source.startswith(f"[{row['evidence']}] ")
    assert len(source) > 30
    if row["evidence"] == "partly":
        assert "Unverified:" in source


def test_an_unknown_name_is_answered_with_close_ones():
    """A misspelt model raises in every function that takes a name, and the message offers the likely names."""
    for ask in (load_layout, ModelLayout.preset, preset_source, ComputeProfile.preset):
        with pytest.raises(LayoutError, match=r"'meta-llama/Llama-3\.1-8B-Instruct'.*llama-3\.1-8b"):
            ask("meta-llama/Llama-3.1-8B-Instruct")
    with pytest.raises(LayoutError, match="41 bundled names") as caught:
        load_layout("zzzzzz")
    assert "Close" not in str(caught.value)


def test_a_layout_loads_from_a_name_a_file_or_a_directory(tmp_path):
    """The same configuration gives the same layers whichever way it is named, and is called after its place."""
    folder = tmp_path / "my-model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(preset_config("qwen3-8b")), encoding="utf-8")
    (tmp_path / "copy.json").write_text(json.dumps(preset_config("qwen3-8b")), encoding="utf-8")
    by_name = load_layout("qwen3-8b", cache_dtype="float8_e4m3fn", tensor_parallel=2)
    for path, name in ((folder, "my-model"), (folder / "config.json", "my-model"), (tmp_path / "copy.json", "copy")):
        layout = load_layout(path, cache_dtype="float8_e4m3fn", tensor_parallel=2)
        assert (layout.name, layout.layers) == (name, by_name.layers)
    assert by_name.name == "qwen3-8b"
    assert ModelLayout.from_config(preset_config("qwen3-8b")).name == "qwen3"
    assert ModelLayout.from_config(folder, name="mine").name == "mine"
