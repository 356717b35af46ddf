#!/usr/bin/env bash
# The experiment of results/protocol_budgets.md: results/budgets.sh FOLDER [JOBS]
# The runs lie in FOLDER, on a busy machine 43 seconds each with 320 rollouts and 154 with 2,560; whatever is finished
# there is not run again. Records go to results/records/budgets.jsonl, tables and figures to results/budgets/.
# `python` must be one that has trace_bench with its plots: pip install -e '.[plots]'.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$place"

swept budgets.jsonl budgets_2 budgets_3
table tables budgets budgets.jsonl three.jsonl method=rl trainer.algorithm.name=grpo,dapo,rloo,gigpo trainer.name=local --across trainer.algorithm.name
