"""Puts the whole project into the build context: training needs more of it than environments do."""

import shutil
import sys
from pathlib import Path


def main() -> None:
    project = Path(sys.argv[1]) / "project"
    root = Path(__file__).resolve().parents[2]
    for name in ("trace_bench", "conf"):
        shutil.copytree(
            root / name,
            project / name,
            ignore=shutil.ignore_patterns("__pycache__"),
            dirs_exist_ok=True,
        )


if __name__ == "__main__":
    main()
