#!/usr/bin/env bash
# The experiment of results/protocol_two.md: results/protocol_two.sh FOLDER [JOBS]
# Runs lie in FOLDER; whatever is finished there is not made again. Records go to
# results/records/second_*.jsonl, tables and figures to results/second_*/.
# `python` must be one that has trace_bench with its plots: pip install -e '.[plots]'.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
place=$(mkdir -p "$1" && cd "$1" && pwd)
jobs=${2:-2}
cd "$place"

# sweeps NAME...: their runs.
sweeps() {
    for name in "$@"; do
        python -m trace_bench.sweep "$here/../sweeps/second_$name.yaml" --jobs "$jobs"
    done
}

# chain SEED: GEPA with a quarter of 1,280 rollouts, GRPO from its agent with all that is left.
chain() {
    local same=(seed="$1" env.train_split=train_large env.train_tasks=64 "checkpoints=[]" evaluation.yardsticks=false)
    python -m trace_bench method=gepa budget=320 run_dir="runs/gepa_$1" "${same[@]}"
    local spent
    spent=$(python -c 'import json, sys; r = json.load(open(sys.argv[1]))["rollouts"]; print(sum(r.values()) - r["evaluation"])' "runs/gepa_$1/summary.json")
    python -m trace_bench method=grpo budget=$((1280 - spent)) agent="runs/gepa_$1" "${same[@]}"
}

sweeps grpo trace others
for seed in 10 11 12 13 14; do chain "$seed"; done
sweeps tasks_grpo tasks_trace breadth budgets_grpo budgets_trace
