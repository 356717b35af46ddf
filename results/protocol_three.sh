#!/usr/bin/env bash
# The experiment of results/protocol_three.md: results/protocol_three.sh FOLDER [JOBS]
# The runs lie in FOLDER, half a minute of a core each; whatever is finished there is not run again.
# Records go to results/records/three.jsonl, tables and figures to results/three/.
# `python` must be one that has trace_bench with its plots: pip install -e '.[plots]'.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$place"

swept three.jsonl three_es three_methods three_rl_1 three_rl_2 three_rl_3 three_trace
table tables three three.jsonl --across trainer.name,trainer.algorithm.name
