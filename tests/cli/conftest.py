import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from kvstead.cli.main import main


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """Standard output as one JSON object."""
        return json.loads(self.out)


@pytest.fixture
def kvstead(capsys) -> Callable[..., Ended]:
    def run(*arguments: object) -> Ended:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        return Ended(ended.value.code or 0, *capsys.readouterr())

    return run


def _row(second: float, prompt_len: int, output_len: int, blocks: list[int]) -> str:
    row = {"timestamp": second * 1000, "input_length": prompt_len, "output_length": output_len, "hash_ids": blocks}
    return json.dumps(row | {"block_size": 16})


@pytest.fixture
def chat(tmp_path):
    """Eight requests over two prefixes of 32 tokens, 24 prompt tokens more and 5 to generate for each."""
    rows = [_row(index / 4, 56, 5, [index % 2, 2 + index % 2, 10 + 2 * index, 11 + 2 * index]) for index in range(8)]
    path = tmp_path / "chat.jsonl"
    path.write_text("\n".join(rows) + "\n")
    return path


@pytest.fixture
def azure(tmp_path):
    """Three requests that say nothing about prefixes."""
    path = tmp_path / "azure.csv"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:46.6805900,48,4\n2023-11-16 18:15:47.0,20,3\n2023-11-16 18:15:48.5,33,6\n"
    )
    return path
