"""The tiny agent: a Qwen3-architecture transformer that the project trains itself and ships."""

from __future__ import annotations

from pathlib import Path

from trace_bench.core.errors import UserError

MODEL_FOLDER = Path(__file__).parent / "model"


def shipped(path: str | None = None) -> str:
    """`model=tiny`: the tiny Qwen3-architecture agent that ships with the package.

    `path`: another build of it; null: the shipped one."""
    if path is None and not (MODEL_FOLDER / "config.json").is_file():
        raise UserError(
            f"the shipped model is missing in {MODEL_FOLDER}. Build it with `python -m "
            "trace_bench.tiny build`, or name another one in `model.path`."
        )
    return path or str(MODEL_FOLDER)
