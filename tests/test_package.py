"""The package root: what it exports, what type checkers see of it, and what an import costs."""

import ast
import inspect
import re
import subprocess
import sys
from importlib import import_module, metadata

import pytest

import kvstead
from kvstead import errors
from paths import ROOT

LAYERS = ["model", "pages", "pools", "arena", "allocators", "prefix", "engine", "integrations.transformers"]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
MISUSE = """\
from kvstead import PagedAllocator, Scheduler

a = PagedAllocator(1024, 16)
reveal_type(PagedAllocator)
a.allok(3)
from kvstead import PagedAlocator
"""


def mypy(tmp_path, code):
    """What mypy says of each line of a user's file, by the settings and the cache of the project's own run."""
    snippet = tmp_path / "snippet.py"
    snippet.write_text(code)
    command = [sys.executable, "-m", "mypy", snippet]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)  # noqa: S603 - our own command
    assert done.returncode in {0, 1}, done.stderr
    return dict(re.findall(r"snippet.py:(\d+): (.*)", done.stdout))


def typed_imports():
    """The names that the root imports for type checkers, and their modules."""
    tree = ast.parse(inspect.getsource(kvstead))
    (block,) = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    found = {}
    for node in block.body:
        assert isinstance(node, ast.ImportFrom), "the block holds imports and nothing else"
        for alias in node.names:
            assert alias.asname == alias.name, "only `X as X` is exported to type checkers"
            found[alias.name] = node.module
    return found


def test_python_and_type_checkers_find_the_same_names():
    """The lazy table and the typed imports name the same things in the same layers."""
    assert typed_imports() == kvstead._HOMES | {"errors": "kvstead"}


@pytest.mark.parametrize("name", sorted(kvstead._HOMES))
def test_every_name_is_that_of_its_layer(name):
    """Each name resolves to its layer's own, and `dir` lists it."""
    assert getattr(kvstead, name) is getattr(import_module(kvstead._HOMES[name]), name)
    assert name in dir(kvstead)


def test_every_error_is_exported():
    """The root has every error, so that a caller can catch any of them by one import."""
    names = {name for name, value in vars(errors).items() if inspect.isclass(value)}
    assert names == {name for name, layer in kvstead._HOMES.items() if layer == "kvstead.errors"}


def test_every_documented_class_is_exported():
    """A class that the README or a page of the docs names can be imported from the root.

    docs/architecture.md is for those who change kvstead, and names inner parts too.
    """
    layers = [import_module(f"kvstead.{layer}") for layer in LAYERS]
    classes = {name for layer in layers for name in layer.__all__ if inspect.isclass(getattr(layer, name))}
    code = re.findall(
        r"`[^`\n]+`|```.*?```",
        "\n".join(page.read_text() for page in PAGES if page.name != "architecture.md"),
        flags=re.DOTALL,
    )
    documented = classes & set(re.findall(r"\w+", " ".join(code)))
    assert len(documented) > 30
    assert documented <= set(kvstead._HOMES)


def test_a_name_that_is_not_there_is_an_attribute_error():
    """A misspelt name raises `AttributeError`, as in any module."""
    with pytest.raises(AttributeError, match="module 'kvstead' has no attribute 'PagedAlocator'"):
        _ = kvstead.PagedAlocator


def test_importing_the_root_loads_no_layer():
    """`import kvstead` and its errors cost neither torch, numpy nor numba."""
    code = "import sys, kvstead; kvstead.DoubleFree; print({'torch', 'numpy', 'numba'} & set(sys.modules))"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603 - our own command
    assert done.stdout == "set()\n"


def test_mypy_knows_every_name(tmp_path):
    """A user's file sees classes, none of the exported names is `Any`, and a misspelt method or name is an error."""
    names = sorted(kvstead._HOMES)
    code = MISUSE + "import kvstead\n" + "".join(f"reveal_type(kvstead.{name})\n" for name in names)
    said = mypy(tmp_path, code)
    revealed, method, name, *rest = said.values()
    assert re.fullmatch(r'note: Revealed type is "def \(.*\) -> kvstead\.allocators\.\w+\.PagedAllocator"', revealed)
    assert '"PagedAllocator" has no attribute "allok"' in method
    assert 'Module "kvstead" has no attribute "PagedAlocator"' in name
    for exported, line in zip(names, rest, strict=True):
        assert "Revealed type is" in line, f"{exported}: {line}"
        assert '"Any"' not in line, f"{exported}: {line}"


WITHOUT_EXTRA = """
import importlib.abc, importlib.util, inspect, pydoc, sys
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name == "transformers" else find(name, package)
import kvstead
assert dict(inspect.getmembers(kvstead))["PagedAllocator"].__name__ == "PagedAllocator"
assert "LLM" not in dir(kvstead) and "importlib" not in dir(kvstead)
assert "PagedAllocator" in pydoc.render_doc(kvstead)
try:
    from kvstead import LLM
except ImportError as error:
    print(error)
"""


def test_names_of_a_missing_extra_say_which_it_is():
    """Without transformers help and `dir` work, and a name that needs it says how to install it."""
    ended = subprocess.run([sys.executable, "-c", WITHOUT_EXTRA], capture_output=True, text=True, check=True)  # noqa: S603
    assert ended.stdout == "kvstead.LLM needs transformers. Install it with: pip install 'kvstead[hf]'\n"


def test_root_has_a_version_and_its_errors():
    """On a fresh import, without a layer being loaded."""
    code = (
        "import sys, kvstead; print(kvstead.__version__, kvstead.errors.KVSteadError.__name__, 'torch' in sys.modules)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)  # noqa: S603
    assert ended.stdout == f"{metadata.version('kvstead')} KVSteadError False\n"
    assert {"__version__", "errors"} <= set(dir(kvstead))
    with pytest.raises(AttributeError, match="novelty"):
        _ = kvstead.novelty


def test_package_runs_as_a_program():
    """`python -m kvstead` is the command line, and -h its help."""
    command = [sys.executable, "-m", "kvstead", "-h"]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603
    assert "Usage: kvstead" in ended.stdout
