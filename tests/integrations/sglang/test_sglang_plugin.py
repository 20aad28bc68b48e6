# ruff: noqa: ARG005 - signatures are all that counts here
import logging
import subprocess
import sys
import tomllib
from dataclasses import asdict
from importlib import import_module
from types import SimpleNamespace

import fake_sglang
import pytest
import torch
from fake_sglang import seat

from kvstead.integrations.sglang import coverage, differences, plugin, replacing, surface, tree_backend
from kvstead.integrations.sglang.allocator.swa import SWATokenToKVPoolAllocator
from kvstead.integrations.sglang.allocator.token import TokenToKVPoolAllocator
from kvstead.integrations.sglang.base_prefix_cache import CacheInitParams
from kvstead.integrations.sglang.memory_pool import ReqToTokenPool
from kvstead.integrations.sglang.radix_cache import RadixCache
from kvstead.integrations.sglang.window_radix_cache import WindowRadixCache
from paths import ROOT

TABLES = "sglang.srt.mem_cache.memory_pool"
WINDOWS = "sglang.srt.mem_cache.allocator.swa"
UNIFIED = {seat.name for seat in coverage.SEATS if seat.family}


@pytest.fixture
def sglang(monkeypatch, caplog):
    """SGLang, as far as the plugin sees it; no switch is set."""
    monkeypatch.delenv(plugin.SWITCH, raising=False)
    caplog.set_level(logging.INFO, logger="kvstead.sglang")
    yield fake_sglang.install(monkeypatch)
    for own in map(ours, coverage.SEATS):
        if "__init_subclass__" in vars(own):
            del own.__init_subclass__


def ours(each):
    home, _, name = each.ours.rpartition(".")
    return getattr(import_module(home), name)


def start(sglang):
    """Load the plugin as SGLang does, and make a scheduler."""
    plugin.register()
    sglang.registry.apply_hooks()
    return sys.modules["sglang.srt.managers.scheduler"].Scheduler()


def replaced():
    return {each.name for each in coverage.SEATS if theirs(each.name) is ours(each)}


def theirs(name):
    home, _, name = seat(name).theirs.rpartition(".")
    return getattr(sys.modules[home], name)


def spoil(name):
    """Have a class of SGLang's take what ours does not."""
    home, _, name = seat(name).theirs.rpartition(".")
    setattr(sys.modules[home], name, type(name, (), {"__init__": lambda self, novelty: None}))


def test_plugin_is_registered_as_an_entry_point():
    """An installed kvstead has one entry point in SGLang's group, and it is this function."""
    points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["sglang.srt.plugins"]
    assert points == {"kvstead": f"{plugin.register.__module__}:{plugin.register.__name__}"}


@pytest.mark.parametrize("mode", [None, "1", "strict", "STRICT"])
def test_every_class_is_replaced_in_all_modules(sglang, monkeypatch, caplog, mode):
    """Ours replace SGLang's in their modules and where others had imported them; the log says so once."""
    if mode is not None:
        monkeypatch.setenv(plugin.SWITCH, mode)
    early = fake_sglang.module(monkeypatch, "sglang.srt.managers", Table=theirs("ReqToTokenPool"))
    start(sglang)
    start(sglang)
    assert early.Table is ReqToTokenPool
    assert replaced() == {each.name for each in coverage.SEATS}
    (record,) = caplog.records
    assert record.levelno == logging.INFO
    assert "replaced BaseTokenToKVPoolAllocator, TokenToKVPoolAllocator, " in record.getMessage()
    assert "KVSTEAD_SGLANG=off" in record.getMessage()


def test_nothing_is_replaced_before_a_cache_is_made(sglang, caplog):
    """A process that makes no scheduler and no model runner keeps SGLang's classes, and imports none of ours."""
    plugin.register()
    sglang.registry.apply_hooks()
    assert not replaced()
    assert not caplog.records
    sys.modules["sglang.srt.model_executor.model_runner"].ModelRunner()
    assert replaced()


def test_plugin_imports_nothing_but_what_it_checks():
    """The module that every process imports takes neither torch nor numba along."""
    code = (
        "import sys\nfrom kvstead.integrations.sglang import plugin\n"
        "print([name for name in ('torch', 'numpy', 'numba') if name in sys.modules])"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)  # noqa: S603
    assert ended.stdout == "[]\n"


@pytest.mark.usefixtures("sglang")
def test_scheduler_imported_later_is_hooked_too(monkeypatch, tmp_path):
    """Where SGLang's scheduler has not been imported yet, it is hooked when it is; other imports are left alone."""
    name = "sglang.srt.managers.scheduler"
    monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys.modules["sglang.srt.managers"], "__path__", [str(tmp_path)])
    source = "import fake_sglang\nclass Scheduler(fake_sglang.Scheduler):\n    pass\n"
    (tmp_path / "scheduler.py").write_text(source)
    (tmp_path / "other.py").write_text("")
    finders = list(sys.meta_path)
    plugin.register()
    assert len(sys.meta_path) == len(finders) + 1
    import_module("sglang.srt.managers.other")
    scheduler = import_module(name)
    monkeypatch.setitem(sys.modules, name, scheduler)
    assert sys.meta_path == finders
    assert not replaced()
    assert scheduler.Scheduler(5).settings == 5
    assert replaced()
    for module in (name, "sglang.srt.managers.other"):
        monkeypatch.delitem(sys.modules, module)


@pytest.mark.usefixtures("sglang")
def test_module_that_does_not_exist_is_not_waited_for(monkeypatch):
    """An import that fails fails as without the plugin."""
    monkeypatch.delitem(sys.modules, "sglang.srt.managers.scheduler")
    plugin.register()
    with pytest.raises(ModuleNotFoundError):
        import_module("sglang.srt.managers.scheduler")


def test_off_leaves_sglang_alone(sglang, monkeypatch, caplog):
    """Nothing is replaced, examined or logged."""
    monkeypatch.setenv(plugin.SWITCH, "off")
    monkeypatch.setattr(coverage, "installed_version", None)
    start(sglang)
    assert not replaced()
    assert not caplog.records


def test_unknown_value_of_the_switch_is_refused(sglang, monkeypatch):
    """An unknown value is an error, not a guess."""
    monkeypatch.setenv(plugin.SWITCH, "yes")
    with pytest.raises(ValueError, match=r"'yes'.*1, strict, audit, off"):
        plugin.register()
    assert not sglang.registry.waiting


@pytest.mark.parametrize("name", ["PagedTokenToKVPoolAllocator", "MambaSubPoolSpec"])
def test_class_that_takes_other_arguments_stays(sglang, monkeypatch, caplog, name):
    """It and its family are left, and a warning says which and why; strict ends the process."""
    spoil(name)
    monkeypatch.setenv(plugin.SWITCH, "strict")
    with pytest.raises(SystemExit, match="does not take novelty"):
        start(sglang)
    assert not replaced()
    monkeypatch.setenv(plugin.SWITCH, "1")
    monkeypatch.setattr(plugin, "_begun", [])
    sys.modules["sglang.srt.managers.scheduler"].Scheduler = type("Scheduler", (fake_sglang.Scheduler,), {})
    stay = UNIFIED if name in UNIFIED else {name}
    scheduler = start(sglang)
    assert replaced() == {each.name for each in coverage.SEATS} - stay
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert f"not {name}: __init__ does not take novelty" in record.getMessage()
    assert all(
        f"not {other}: it is replaced only together with {name}" in record.getMessage() for other in stay - {name}
    )
    said = scheduler.get_internal_state().internal_state["kvstead"]
    assert set(said["replaced"]) == replaced()
    assert set(said["not_replaced"]) == stay


def test_server_info_says_what_was_replaced(sglang):
    """The state of a scheduler names the classes, beside what SGLang says."""
    state = start(sglang).get_internal_state().internal_state
    assert state["steps"] == 1
    assert state["kvstead"] == {"replaced": [each.name for each in coverage.SEATS], "not_replaced": {}}


def test_host_tier_leaves_the_unified_classes(sglang, monkeypatch, caplog):
    """With HiCache the classes over a unified buffer stay, and the log says why; strict ends the process."""
    sglang.memory.enable_hierarchical_cache = True
    start(sglang)
    assert replaced() == {each.name for each in coverage.SEATS} - UNIFIED
    assert "not UnifiedKVPool: HiCache is on" in caplog.records[0].getMessage()
    monkeypatch.setattr(plugin, "_begun", [])
    monkeypatch.setenv(plugin.SWITCH, "strict")
    with pytest.raises(SystemExit, match="HiCache is on"):
        replacing.replace_classes(strict=True)


@pytest.mark.usefixtures("sglang")
def test_engine_without_settings_has_no_host_tier(monkeypatch):
    """Before SGLang has published its settings, everything is replaced."""

    def unpublished():
        raise ValueError("not published")

    monkeypatch.setattr(sys.modules["sglang.srt.runtime_context"], "get_memory", unpublished)
    monkeypatch.delitem(sys.modules, "sglang.srt.managers.scheduler")
    replacing.replace_classes()
    assert replaced() == {each.name for each in coverage.SEATS}


def context(**changes):
    """What SGLang makes a tree from."""
    params = CacheInitParams(disable=False, req_to_token_pool=None, token_to_kv_pool_allocator=None, page_size=4)
    params = SimpleNamespace(**asdict(params), swa_gates_prefix_match=changes.pop("gates", True))
    params.token_to_kv_pool_allocator = changes.pop("allocator", None)
    facts = dict.fromkeys(("is_hybrid_swa", "is_hybrid_ssm", "enable_hierarchical_cache"), False)
    return SimpleNamespace(params=params, **({"full_tokens_per_layer": 64} | facts | changes))


@pytest.mark.parametrize("mode", ["1", "strict", "audit"])
def test_tree_is_offered_as_a_backend(sglang, monkeypatch, mode):
    """`--radix-cache-backend kvstead` names our tree, once, in every mode but off."""
    monkeypatch.setenv(plugin.SWITCH, mode)
    plugin.register()
    plugin.register()
    assert sglang.backends == {"kvstead": tree_backend.make_tree}
    tree = sglang.backends["kvstead"](context())
    assert isinstance(tree, RadixCache)
    assert isinstance(tree, fake_sglang.BasePrefixCache)
    assert tree.page_size == 4
    assert (tree.kv_events.enabled, tree.kv_events.page_size) == (False, 4)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"is_hybrid_swa": True, "full_tokens_per_layer": 0}, "not windows in all layers. Leave"),
        ({"is_hybrid_ssm": True, "is_hybrid_swa": True, "gates": False}, "rings of the requests and recurrent states"),
        ({"enable_hierarchical_cache": True}, "HiCache"),
        ({"is_hybrid_swa": True, "allocator": SimpleNamespace(unified_buffer=None)}, "windows in a unified buffer"),
    ],
)
@pytest.mark.usefixtures("sglang")
def test_tree_refuses_models_that_it_does_not_serve(changes, words):
    """One line says which part is not served, and the way out."""
    with pytest.raises(NotImplementedError, match=words):
        tree_backend.make_tree(context(**changes))


@pytest.mark.usefixtures("sglang")
def test_tree_of_a_model_with_windows_keeps_them():
    """Layers with windows beside layers with full attention get a tree with both sides, over an allocator with both."""
    made = context(is_hybrid_swa=True)
    made.params.sliding_window_size = 8
    made.params.token_to_kv_pool_allocator = SWATokenToKVPoolAllocator(
        16, 16, 4, torch.bfloat16, "cpu", SimpleNamespace(register_mapping=id), need_sort=False
    )
    tree = tree_backend.make_tree(made)
    assert isinstance(tree, WindowRadixCache)
    assert isinstance(tree, fake_sglang.BasePrefixCache)
    assert (tree.supports_swa(), tree.sliding_window_size) == (True, 8)


def test_tree_is_not_offered_when_off_or_not_covered(sglang, monkeypatch):
    """Nothing is registered."""
    monkeypatch.setattr(coverage, "installed_version", lambda: "0.6.0")
    plugin.register()
    monkeypatch.setenv(plugin.SWITCH, "off")
    plugin.register()
    assert sglang.backends == {}


def test_module_that_cannot_be_imported_leaves_the_others_replaced(sglang, caplog, monkeypatch):
    """Where SGLang has no such module, or it fails, the other classes are replaced."""
    monkeypatch.setitem(sys.modules, "sglang.srt.mem_cache.radix_cache", None)
    start(sglang)
    assert "not RadixCache: cannot be imported: ModuleNotFoundError" in caplog.records[0].getMessage()
    assert theirs("TokenToKVPoolAllocator") is TokenToKVPoolAllocator


def test_version_that_is_not_covered_is_left_alone(sglang, monkeypatch, caplog):
    """Nothing is replaced in an untested version, and the log says so; strict ends the process at once."""
    monkeypatch.setattr(coverage, "installed_version", lambda: "0.6.0")
    start(sglang)
    assert not replaced()
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "SGLang 0.6.0 is not covered; 0.5.23 is. Nothing was replaced." in record.getMessage()
    monkeypatch.setenv(plugin.SWITCH, "strict")
    with pytest.raises(SystemExit, match=r"0\.6\.0 is not covered"):
        plugin.register()


def subclass_of(name, module, subclass, **namespace):
    """A subclass of the class that SGLang's module names now."""
    return type(subclass, (theirs(name),), {"__module__": module, **namespace})


MLX = "sglang.srt.hardware_backend.mlx.kv_cache.auxiliary_state"
NPU = "sglang.srt.hardware_backend.npu.dsv4.dsv4_allocator"


@pytest.mark.parametrize("is_late", [False, True], ids=["before", "after"])
def test_base_of_a_subclass_does_not_depend_on_the_order_of_imports(sglang, caplog, is_late):
    """A subclass that uses public attributes gets our base, any other keeps SGLang's, whether it is made before the
    classes are replaced or after; both pass for the class that is named.
    """
    originals = {name: theirs(name) for name in ("ReqToTokenPool", "SWATokenToKVPoolAllocator")}
    if is_late:
        start(sglang)
    mlx = subclass_of("ReqToTokenPool", MLX, "MlxAuxiliaryStateReqToTokenPool")
    hybrid = subclass_of("ReqToTokenPool", TABLES, "HybridReqToTokenPool")
    stranger = subclass_of("SWATokenToKVPoolAllocator", "somebody.elses", "WindowAllocator")
    if not is_late:
        start(sglang)
        said = caplog.records[0].getMessage()
        assert "MlxAuxiliaryStateReqToTokenPool has the new base" in said
        assert f"HybridReqToTokenPool keeps SGLang's base: {coverage.KEPT[f'{TABLES}.HybridReqToTokenPool']}" in said
        assert "WindowAllocator keeps SGLang's base: it may use private attributes" in said
    assert issubclass(mlx, ReqToTokenPool)
    assert mlx(3, 4, "cpu", enable_memory_saver=False).alloc_rows(2) == [1, 2]
    assert hybrid.__bases__ == (originals["ReqToTokenPool"],)
    assert stranger.__bases__ == (originals["SWATokenToKVPoolAllocator"],)
    assert issubclass(stranger, SWATokenToKVPoolAllocator)


def test_subclass_whose_base_cannot_change_keeps_it(sglang, monkeypatch, caplog):
    """Where Python refuses another base, the log says so."""
    name = "SWATokenToKVPoolAllocator"
    rigid = type(name, (), {"__init__": theirs(name).__init__, "__module__": WINDOWS})  # no ABC, as ours is
    monkeypatch.setattr(sys.modules[WINDOWS], name, rigid)
    stiff = subclass_of(name, NPU, "DSV4NPUTokenToKVPoolAllocator")
    start(sglang)
    assert SWATokenToKVPoolAllocator not in stiff.__mro__
    assert "DSV4NPUTokenToKVPoolAllocator keeps SGLang's base: __bases__ assignment" in caplog.records[0].getMessage()


def test_class_that_somebody_kept_makes_ours(sglang):
    """Whoever holds SGLang's class from before gets an object of ours; a subclass of it makes its own."""
    kept = theirs("ReqToTokenPool")
    table = type("Table", (kept,), {"__module__": "somebody.elses", "__init__": lambda self: None})
    start(sglang)
    made = kept(3, 4, "cpu", enable_memory_saver=False)
    assert type(made) is ReqToTokenPool
    assert made.alloc_rows(1) == [1]
    assert type(table()) is table


def test_classes_that_stay_are_not_among_those_replaced():
    """No class is both replaced and kept, and each of ours exists under its own name."""
    targets = [seat.theirs for seat in coverage.SEATS]
    assert len(set(targets)) == len(targets)
    assert not set(targets) & set(coverage.KEPT)
    assert not coverage.REBASED & set(coverage.KEPT)
    assert all(each.ours.rpartition(".")[2] == each.name for each in coverage.SEATS)
    assert {*differences.ABSENT, *differences.INHERITED} <= {each.name for each in coverage.SEATS}


def test_without_sglang_there_is_nothing_to_replace():
    """An environment without SGLang has no version and no faults."""
    found = coverage.examine()
    assert found.version is None
    assert not found.findings
    assert not found.is_covered


@pytest.mark.parametrize(
    ("wanted", "given", "missing"),
    [
        (lambda a, b: None, lambda a, b: None, []),
        (lambda a, b: None, lambda a, b, c=1: None, []),
        (lambda a, *, b: None, lambda a, *, c=1, b: None, []),
        (lambda a, *, b: None, lambda a, b: None, []),
        (lambda a, b: None, lambda b, a: None, ["a", "b"]),
        (lambda a, b=1: None, lambda a, b: None, ["b"]),
        (lambda a, b: None, lambda a, *, b: None, ["b"]),
        (lambda a, b: None, lambda a: None, ["b"]),
        (lambda a, b: None, lambda *args, **kwargs: None, []),
        (lambda *args, **kwargs: None, lambda: None, []),
    ],
)
def test_arguments_are_compared_by_name_place_and_default(wanted, given, missing):
    """Everything that can be passed to the one can be passed to the other."""
    assert surface.missing_parameters(wanted, given) == missing


def test_all_classes_are_exported_by_name():
    """The package exports each of them, and no other name, without SGLang."""
    package = import_module("kvstead.integrations.sglang")
    assert sorted(package.__all__) == sorted(each.name for each in coverage.SEATS)
    assert set(package.__all__) <= set(dir(package))
    assert package.ReqToTokenPool is ReqToTokenPool
    with pytest.raises(AttributeError, match="Scheduler"):
        _ = package.Scheduler


class Theirs:
    """A class of SGLang's."""

    kind = 1

    def __init__(self, size):
        self.size = size
        self._private = self.size

    @property
    def pages(self):
        """A property that notes what it was asked."""
        self.asked = True
        return self.size

    def free(self, slots, *, start=0):
        """A method."""


class Wider(Theirs):
    """A subclass that answers one thing otherwise."""

    def free(self, slots, *, start=0):
        """Another method."""


class Own:
    """Ours, without two attributes and with another method."""

    def __init__(self, size):
        self.pages, self.size = size, size

    def free(self, slots):
        """A method that takes less."""


class OwnWider(Own):
    """Ours for the subclass, which answers nothing otherwise."""


def test_members_that_are_absent_or_take_less_are_found():
    """Attributes of the class, of its bases and of its methods count, private ones do not."""
    assert surface.absent_members(Theirs, Own) == ["asked", "kind"]
    assert surface.absent_members(Wider, Own) == ["asked", "kind"]
    assert surface.absent_members(Own, Theirs) == []
    assert surface.changed_calls(Theirs, Own) == {"free": ["start"]}
    assert surface.changed_calls(Wider, OwnWider) == {"free": ["start"]}
    assert surface.changed_calls(Own, Theirs) == {}


def test_members_that_only_the_base_answers_are_found():
    """What SGLang's class defines itself and ours inherits from the class that stands for its base is named."""
    assert surface.inherited_members(Wider, OwnWider, {Own, OwnWider}) == ["free"]
    assert surface.inherited_members(Wider, OwnWider, {OwnWider}) == []
    assert surface.inherited_members(Wider, Own, {Own}) == []


@pytest.mark.usefixtures("sglang")
def test_differences_without_a_reason_are_faults(monkeypatch):
    """A member that is absent or inherited is a fault of its class, save where `differences` has the reason."""
    home, _, name = seat("PureSWATokenToKVPoolAllocator").theirs.rpartition(".")
    namespace = {"__init__": ours(seat(name)).__init__, "novelty": 1, "new_pages_available": 1}
    monkeypatch.setattr(sys.modules[home], name, type(name, (), namespace))

    def fault():
        return next(found.fault for found in coverage.examine().findings if found.seat.name == name)

    assert fault() == "it has no novelty"
    monkeypatch.setattr(coverage, "ABSENT", {name: {"novelty": "why not"}})
    assert fault() == ""
    monkeypatch.setattr(coverage, "INHERITED", {})
    assert fault() == "it inherits new_pages_available, which SGLang's class defines itself"
