#!/usr/bin/env bash
# The same search for every algorithm of docs/algorithms.md, on development tasks: results/algorithms.sh FOLDER [JOBS]
# The runs lie in FOLDER, ten seconds of a core each; whatever is finished there is not run again.
# Records go to results/records/algorithms.jsonl, the table to results/algorithms/.
# `python` must be one that has trace_bench: pip install -e .
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$place"

swept algorithms.jsonl search_algorithms search_es
table search algorithms algorithms.jsonl --across trainer.name,trainer.algorithm.name
