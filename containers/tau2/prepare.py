"""Puts the newer tasks into the build context, from a checkout of the benchmark named in
TAU2_SOURCE; without one the image has the tasks that inspect-evals ships, and no others."""

import os
import shutil
import sys
from pathlib import Path

FOLDER = "tau2_bench_checkout"  # where trace_bench.envs.tau2.data looks for it
DOMAINS = ("airline", "retail")  # telecom's tasks are those of inspect-evals


def main() -> None:
    checkout = os.environ.get("TAU2_SOURCE")
    if not checkout:
        return
    target = Path(sys.argv[1]) / "site" / FOLDER
    for domain in DOMAINS:
        path = Path("data") / "tau2" / "domains" / domain / "tasks.json"
        if not (Path(checkout) / path).is_file():
            sys.exit(
                f"TAU2_SOURCE={checkout} is no checkout of github.com/sierra-research/tau2-bench: "
                f"it has no {path}"
            )
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(Path(checkout) / path, target / path)
    shutil.copyfile(Path(checkout) / "LICENSE", target / "LICENSE")


if __name__ == "__main__":
    main()
