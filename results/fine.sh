#!/usr/bin/env bash
# The experiment of results/protocol_fine.md: results/fine.sh FOLDER [JOBS]
# The runs lie in FOLDER, about a minute each on a busy machine; whatever is finished there is not run again.
# Records go to results/records/fine.jsonl, tables and figures to results/fine/.
# `python` must be one that has trace_bench with its plots: pip install -e '.[plots]'.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$place"

swept fine.jsonl fine_rl fine_trace
table tables fine fine.jsonl --across trainer.algorithm.name
