import io

from rich.console import Console

from kvstead.model import load_layout, preset_names
from kvstead.model.compute import load_profile
from kvstead.report.models import is_managed, layers_by_kind, model_table, models_table, token_bytes_by_kind


def _text(table):
    stream = io.StringIO()
    Console(file=stream, width=160).print(table)
    return stream.getvalue()


def test_every_layer_is_counted_once():
    """The counts by kind add up to the layers of each bundled model."""
    for name in preset_names():
        layout = load_layout(name)
        counts = [int(part.split()[0]) for part in layers_by_kind(layout).split(" + ")]
        assert sum(counts) == len(layout.layers), name


def test_bytes_by_kind_add_up():
    """The bytes shown by kind are those of whole sequences and of windows together."""
    for name in preset_names():
        layout = load_layout(name)
        shown = [int(part.split()[0].replace(",", "")) for part in token_bytes_by_kind(layout).split(" + ") if part]
        assert sum(shown) == layout.full_bytes_per_token + layout.window_bytes_per_token, name


def test_kinds_of_layers_are_told_apart():
    """Sharing layers, layers with attention and state, and pure state all have their words."""
    assert layers_by_kind(load_layout("gemma-3n-e4b")) == "16 window + 15 sharing + 4 full"
    assert layers_by_kind(load_layout("falcon-h1-7b")) == "44 full with state"
    assert token_bytes_by_kind(load_layout("deepseek-v3")) == "70,272 latent"


def test_the_list_shows_evidence_and_the_detail_the_source():
    """Brackets and assumptions of a source are shown as text, never read as markup."""
    layout = load_layout("gemma-2-9b")
    assert "package" in _text(models_table([(layout, "[package] some file.")]))
    detail = _text(model_table(layout, load_profile("gemma-2-9b"), "[package] some file."))
    assert "[package] some file." in detail
    assert "4,096 tokens, sliding" in detail


def test_a_state_is_shown_by_sequence():
    """A model with recurrent state shows its bytes for one sequence, and nothing per token where there is nothing."""
    layout = load_layout("bamba-9b")
    assert f"{layout.state_bytes:,} bytes a sequence" in _text(model_table(layout, load_profile("bamba-9b"), ""))


def test_models_that_can_be_replayed_are_marked():
    """Windows, chunks and latents are managed; a state, alone or beside attention, is not yet."""
    replayed = {name for name in preset_names() if is_managed(load_layout(name))}
    assert {"llama-3.1-8b", "gemma-3-27b", "llama-4-scout", "mistral-7b-v0.1", "deepseek-v3"} <= replayed
    assert not {"bamba-9b", "kimi-linear-48b-a3b", "falcon-h1-7b"} & replayed
    for name in ("gemma-3-27b", "bamba-9b"):
        layout = load_layout(name)
        listed = _text(models_table([(layout, "[package] some file.")])).splitlines()
        detail = _text(model_table(layout, load_profile(name), ""))
        assert ("yes" in listed[-2].split()) == (name in replayed)
        assert "replayed" in detail
        assert ("not yet" in detail) == (name not in replayed)
