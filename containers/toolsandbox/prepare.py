"""Puts the official package into the build context: from a checkout named in TOOLSANDBOX_SOURCE,
else from its public repository at the commit that was measured."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

REPOSITORY = "https://github.com/apple/ToolSandbox"
COMMIT = "165848b"


def main() -> None:
    context = Path(sys.argv[1])
    checkout = os.environ.get("TOOLSANDBOX_SOURCE")
    with tempfile.TemporaryDirectory() as place:
        source = Path(checkout) if checkout else fetched(Path(place) / "checkout")
        package = source / "tool_sandbox"
        if not (package / "scenarios").is_dir():
            sys.exit(f"TOOLSANDBOX_SOURCE={checkout} is no checkout of {REPOSITORY}")
        shutil.copytree(package, context / "site" / "tool_sandbox")
        shutil.copyfile(source / "LICENSE", context / "site" / "tool_sandbox" / "LICENSE")


def fetched(place: Path) -> Path:
    try:
        subprocess.run(["git", "clone", "-q", REPOSITORY, str(place)], check=True)
        subprocess.run(["git", "-C", str(place), "checkout", "-q", COMMIT], check=True)
    except (OSError, subprocess.CalledProcessError):
        sys.exit(
            f"{REPOSITORY} cannot be reached; get a checkout (commit {COMMIT}) by other means and "
            "name its folder in TOOLSANDBOX_SOURCE"
        )
    return place


if __name__ == "__main__":
    main()
