import io
from dataclasses import replace

import pytest
from rich.console import Console

from kvstead.engine import KVCacheManager
from kvstead.errors import LayoutError
from kvstead.model import load_layout, preset_names
from kvstead.model.compute import load_profile
from kvstead.report.models import layers_by_kind, model_table, models_table, token_bytes_by_kind


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


def test_kinds_of_layers_are_counted_apart():
    """Sharing layers, layers with attention and state, and pure state all have their words."""
    assert layers_by_kind(load_layout("gemma-3n-e4b")) == "16 window + 15 sharing + 4 full"
    assert layers_by_kind(load_layout("falcon-h1-7b")) == "44 full with state"
    assert token_bytes_by_kind(load_layout("deepseek-v3")) == "70,272 latent"


def test_the_list_shows_evidence_and_the_detail_the_source():
    """Brackets and assumptions of a source are shown as text, never read as markup."""
    layout = load_layout("gemma-2-9b")
    assert "package" in _text(models_table([(layout, load_profile("gemma-2-9b"), "[package] some file.")]))
    detail = _text(model_table(layout, load_profile("gemma-2-9b"), "[package] some file."))
    assert "[package] some file." in detail
    assert "4,096 tokens, sliding" in detail


def test_a_state_is_shown_by_sequence():
    """A model with recurrent state shows its bytes for one sequence, and nothing per token where there is nothing."""
    layout = load_layout("bamba-9b")
    assert f"{layout.state_bytes:,} bytes a sequence" in _text(model_table(layout, load_profile("bamba-9b"), ""))


def test_models_that_can_be_replayed_are_marked():
    """All bundled models are managed: a manager can be made for them, and is refused for states alone."""
    states_alone = replace(load_layout("bamba-9b"), layers=load_layout("bamba-9b").layers[:1])
    for layout in [*map(load_layout, preset_names()), states_alone]:
        assert layout.is_manageable == (layout is not states_alone)
        detail = _text(model_table(layout, load_profile("bamba-9b"), ""))
        assert ("states alone are sized, not managed" in detail) == (layout is states_alone)
        if layout.is_manageable:
            assert KVCacheManager(layout, 2**36, max_requests=1, max_length=16, storage=False)
        else:
            with pytest.raises(LayoutError):
                KVCacheManager(layout, 2**36, max_requests=1, max_length=16, storage=False)
