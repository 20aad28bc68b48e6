import logging
from types import SimpleNamespace

import numba
import pytest

from kvstead.kernels import compiling
from kvstead.kernels.compiling import i64, kernel

compiled_only = pytest.mark.skipif(bool(numba.config.DISABLE_JIT), reason="nothing is compiled with the JIT off")


@pytest.fixture
def said(caplog):
    """The messages of this test, which are each said once a process."""
    caplog.set_level(logging.WARNING, logger="kvstead")
    compiling._say_compiling.cache_clear()
    compiling._say_uncached.cache_clear()
    return lambda: [record.getMessage() for record in caplog.records]


def made():
    @kernel(i64(i64))
    def double(number):
        return 2 * number

    @kernel(i64(i64))
    def triple(number):
        return 3 * number

    return double, triple


@compiled_only
def test_compiling_is_said_once(said, monkeypatch):
    """Kernels whose code is not on disk are announced by the first of them; those that are loaded are not."""
    monkeypatch.setattr(compiling, "_is_kept", lambda _: True)
    double, triple = made()
    assert double(2) == 4
    assert said() == []
    monkeypatch.setattr(compiling, "_is_kept", lambda _: False)
    double, triple = made()
    assert (double(2), triple(2)) == (4, 6)
    assert said() == ["kvstead compiles its kernels for this machine. That takes some seconds, once."]


@compiled_only
def test_kernels_work_where_nothing_can_be_kept(said, monkeypatch):
    """Without a folder that can be written kernels are compiled in memory, and the way out is said once."""

    def njit(*, cache=False, **settings):
        if cache:
            raise RuntimeError("cannot cache function 'double': no locator available for file '<x>'\nmore")
        return numba.njit(**settings)

    monkeypatch.setattr(compiling, "njit", njit)
    double, triple = made()
    assert (double(2), triple(2)) == (4, 6)
    (uncached,) = [text for text in said() if "cannot keep" in text]
    assert "(cannot cache function 'double': no locator available for file '<x>')" in uncached
    assert "Set NUMBA_CACHE_DIR" in uncached


@compiled_only
def test_kernels_work_on_a_full_disk(said):
    """Code that cannot be written is used from memory; the call gives its answer."""
    double, _ = made()

    def save_overload(*_):
        raise OSError(28, "No space left on device")

    double._cache.load_overload = lambda *_: None
    double._cache.save_overload = save_overload
    assert double(2) == 4
    assert any("No space left on device" in text for text in said())


@compiled_only
def test_code_on_disk_is_recognised(tmp_path):
    """A kernel whose index file exists is not announced; what numba does not tell counts as not kept."""
    files = SimpleNamespace(locator=SimpleNamespace(get_cache_path=lambda: str(tmp_path)), filename_base="double-1")
    compiled = SimpleNamespace(_cache=SimpleNamespace(_impl=files))
    assert not compiling._is_kept(compiled)
    (tmp_path / "double-1.nbi").touch()
    assert compiling._is_kept(compiled)
    assert not compiling._is_kept(SimpleNamespace())
