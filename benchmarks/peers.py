"""Makes the interpreter that the peer runs in: `.venv/peers`, next to kvstead's own and apart from it.

It has nothing but the peer and the light packages that the peer imports, up to a whole engine on a CPU. Torch, numpy
and numba are kvstead's own, through a path file, so that both sides run on the same builds; kvstead itself is found
there as well, and by its entry point SGLang finds the plugin.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HOME = ROOT / ".venv" / "peers"
PYTHON = HOME / "bin" / "python"
SGLANG = "0.5.23"

# Their own requirements are GPU packages and other versions of torch; what is really imported follows below.
_BARE = [f"sglang=={SGLANG}", "transformers==5.19.0", "triton==3.9.0"]
_LIGHT = """
    aiohttp blake3 cloudpickle dill distro easydict einops fastapi hf_transfer huggingface_hub interegular ipython
    msgspec ninja openai orjson packaging partial_json_parser pillow prometheus-client psutil pybase64 pydantic
    python-multipart pyyaml pyzmq regex requests safetensors scipy sentencepiece setproctitle setuptools tiktoken
    tokenizers==0.23.2 tqdm uvicorn uvloop xxhash
"""


def sglang_python() -> Path | None:
    """The interpreter that can import SGLang, installed if need be; None, with the reason printed, where it cannot."""
    stamp = HOME / f".sglang-{SGLANG}-engine"
    if stamp.exists():
        return PYTHON
    print(f"Installing SGLang {SGLANG} into {HOME.relative_to(ROOT)} ...", flush=True)
    try:
        _run(sys.executable, "-m", "venv", "--clear", str(HOME))
        (_packages_of(PYTHON) / "kvstead_torch.pth").write_text(sysconfig.get_path("purelib") + "\n")
        pip = [str(PYTHON), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        _run(*pip, *_LIGHT.split())
        _run(*pip, "--no-deps", *_BARE)
        imports = "import side_sglang_unified, side_sglang_windows"
        _run(str(PYTHON), "-W", "ignore", "-c", imports, cwd=Path(__file__).parent)
    except subprocess.CalledProcessError as error:
        lines = error.stderr.strip().splitlines() or [f"exit status {error.returncode}"]
        print(f"SGLang {SGLANG} cannot be installed here, so kvstead is measured alone: {lines[-1]}")
        return None
    stamp.touch()
    return PYTHON


def _packages_of(python: Path) -> Path:
    """Where an interpreter's own packages lie."""
    return Path(_run(str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())


def _run(*command: str, cwd: Path = ROOT) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, cwd=cwd).stdout
