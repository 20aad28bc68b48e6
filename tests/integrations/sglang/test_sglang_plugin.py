# ruff: noqa: ARG005 - signatures are all that counts here
import logging
import sys
import tomllib
from importlib import import_module

import fake_sglang
import pytest
from fake_sglang import seat

from kvstead.integrations.sglang import coverage, plugin
from kvstead.integrations.sglang.allocator.swa import SWATokenToKVPoolAllocator
from kvstead.integrations.sglang.allocator.token import TokenToKVPoolAllocator
from kvstead.integrations.sglang.memory_pool import ReqToTokenPool
from paths import ROOT

TABLES = "sglang.srt.mem_cache.memory_pool"
WINDOWS = "sglang.srt.mem_cache.allocator.swa"
UNIFIED = {seat.name for seat in coverage.SEATS if seat.family}


@pytest.fixture
def sglang(monkeypatch, caplog):
    """SGLang, as far as the plugin sees it; no switch is set."""
    monkeypatch.delenv(plugin.SWITCH, raising=False)
    caplog.set_level(logging.INFO, logger="kvstead.sglang")
    return fake_sglang.install(monkeypatch)


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
    plugin.register()
    assert sglang.hooks.keys() == {seat.theirs for seat in coverage.SEATS}
    sglang.apply_hooks()
    assert early.Table is ReqToTokenPool
    assert theirs("TokenToKVPoolAllocator") is TokenToKVPoolAllocator
    for each in coverage.SEATS:
        home, _, name = each.ours.rpartition(".")
        assert theirs(each.name) is getattr(import_module(home), name)
    (record,) = caplog.records
    assert record.levelno == logging.INFO
    assert "replaced BaseTokenToKVPoolAllocator, TokenToKVPoolAllocator, " in record.getMessage()
    assert "KVSTEAD_SGLANG=off" in record.getMessage()


def test_off_leaves_sglang_alone(sglang, monkeypatch, caplog):
    """Nothing is replaced, examined or logged."""
    monkeypatch.setenv(plugin.SWITCH, "off")
    monkeypatch.setattr(plugin, "examine", None)
    plugin.register()
    assert not sglang.hooks
    assert not caplog.records


def test_unknown_value_of_the_switch_is_refused(sglang, monkeypatch):
    """An unknown value is an error, not a guess."""
    monkeypatch.setenv(plugin.SWITCH, "yes")
    with pytest.raises(ValueError, match=r"'yes'.*1, strict, off"):
        plugin.register()
    assert not sglang.hooks


@pytest.mark.parametrize("name", ["PagedTokenToKVPoolAllocator", "MambaSubPoolSpec"])
def test_class_that_takes_other_arguments_stays(sglang, monkeypatch, caplog, name):
    """It and its family are left, and the log says which and why; strict ends the process."""
    spoil(name)
    stay = UNIFIED if name in UNIFIED else {name}
    plugin.register()
    assert {target.rpartition(".")[2] for target in sglang.hooks} == {each.name for each in coverage.SEATS} - stay
    (record,) = caplog.records
    assert f"not {name}: __init__ does not take novelty" in record.getMessage()
    assert all(
        f"not {other}: it is replaced only together with {name}" in record.getMessage() for other in stay - {name}
    )
    sglang.hooks.clear()
    monkeypatch.setenv(plugin.SWITCH, "strict")
    with pytest.raises(SystemExit, match="does not take novelty"):
        plugin.register()
    assert not sglang.hooks


def test_module_that_cannot_be_imported_leaves_the_others_replaced(sglang, caplog, monkeypatch):
    """Where SGLang has no such module, or it fails, the other classes are replaced."""
    monkeypatch.setitem(sys.modules, "sglang.srt.mem_cache.radix_cache", None)
    plugin.register()
    assert len(sglang.hooks) == len(coverage.SEATS) - 1
    assert "not RadixCache: cannot be imported: ModuleNotFoundError" in caplog.records[0].getMessage()


def test_version_that_is_not_covered_is_left_alone(sglang, monkeypatch, caplog):
    """Nothing is replaced in an untested version, and the log says so; strict ends the process."""
    monkeypatch.setattr(coverage, "installed_version", lambda: "0.6.0")
    plugin.register()
    assert not sglang.hooks
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert (
        "SGLang 0.6.0 is not covered; those that are: 0.5.19 and 0.5.23. Nothing was replaced." in record.getMessage()
    )
    monkeypatch.setenv(plugin.SWITCH, "strict")
    with pytest.raises(SystemExit, match=r"0\.6\.0 is not covered"):
        plugin.register()


def test_older_version_keeps_its_unified_pool(sglang, monkeypatch):
    """In 0.5.19 the unified classes stay, under strict too: their memory is laid out differently there."""
    monkeypatch.setattr(coverage, "installed_version", lambda: "0.5.19")
    monkeypatch.setenv(plugin.SWITCH, "strict")
    plugin.register()
    assert {target.rpartition(".")[2] for target in sglang.hooks} == {each.name for each in coverage.SEATS} - UNIFIED


def subclass_of(name, module, subclass, **namespace):
    """A subclass of SGLang's class, made before the plugin runs."""
    return type(subclass, (theirs(name),), {"__module__": module, **namespace})


@pytest.mark.usefixtures("sglang")
def test_existing_subclasses_get_the_new_base_where_possible(caplog):
    """Subclasses that use public attributes get our base; the others keep theirs, and the log says why."""
    mlx = subclass_of(
        "ReqToTokenPool",
        "sglang.srt.hardware_backend.mlx.kv_cache.auxiliary_state",
        "MlxAuxiliaryStateReqToTokenPool",
    )
    hybrid = subclass_of("ReqToTokenPool", TABLES, "HybridReqToTokenPool")
    stranger = subclass_of("SWATokenToKVPoolAllocator", "somebody.elses", "WindowAllocator")
    module = "sglang.srt.hardware_backend.npu.dsv4.dsv4_allocator"
    stiff = subclass_of("SWATokenToKVPoolAllocator", module, "DSV4NPUTokenToKVPoolAllocator", __slots__=("one",))
    before = stranger.__bases__, hybrid.__bases__
    plugin.register()
    assert issubclass(mlx, ReqToTokenPool)
    assert mlx(3, 4, "cpu", enable_memory_saver=False).alloc_rows(2) == [1, 2]
    assert (stranger.__bases__, hybrid.__bases__) == before
    assert SWATokenToKVPoolAllocator not in stiff.__mro__
    assert issubclass(stranger, SWATokenToKVPoolAllocator), "who asks for the class by its name is told yes, as before"
    said = caplog.records[0].getMessage()
    assert "MlxAuxiliaryStateReqToTokenPool has the new base" in said
    assert f"HybridReqToTokenPool keeps SGLang's base: {coverage.KEPT[f'{TABLES}.HybridReqToTokenPool']}" in said
    assert "WindowAllocator keeps SGLang's base: kvstead does not know what it needs of it" in said
    assert "DSV4NPUTokenToKVPoolAllocator keeps SGLang's base: __bases__ assignment" in said


def test_classes_that_stay_are_not_among_those_replaced():
    """No class is both replaced and kept, and each of ours exists under its own name."""
    targets = [seat.theirs for seat in coverage.SEATS]
    assert len(set(targets)) == len(targets)
    assert not set(targets) & set(coverage.KEPT)
    assert not coverage.REBASED & set(coverage.KEPT)
    for each in coverage.SEATS:
        module, _, name = each.ours.rpartition(".")
        assert name == each.name
        assert isinstance(getattr(import_module(module), name), type)


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
    assert coverage.missing_parameters(wanted, given) == missing


def test_all_classes_are_exported_by_name():
    """The package exports each of them, and no other name, without SGLang."""
    package = import_module("kvstead.integrations.sglang")
    assert sorted(package.__all__) == sorted(each.name for each in coverage.SEATS)
    assert set(package.__all__) <= set(dir(package))
    assert package.ReqToTokenPool is ReqToTokenPool
    with pytest.raises(AttributeError, match="Scheduler"):
        _ = package.Scheduler
