#!/usr/bin/env bash
# The experiment of results/protocol_two.md: results/protocol_two.sh FOLDER [JOBS]
# Runs lie in FOLDER, a folder for each group; whatever is finished there is not made again. Records go to
# results/records/second_*.jsonl, tables and figures to results/second_*/.
# `python` must be one that has trace_bench with its plots: pip install -e '.[plots]'.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$place"

# group NAME SWEEP...: the runs of these sweeps in the group's folder.
group() {
    local name=$1
    shift
    for sweep in "$@"; do
        python -m trace_bench.sweep "$here/../sweeps/second_$sweep.yaml" --jobs "$jobs" --runs-root "$name"
    done
}

# chain SEED: GEPA with a quarter of 1,280 rollouts, GRPO from its agent with all that is left.
chain() {
    local spent first="main/gepa_$1"
    local same=(seed="$1" env.train_split=train_large env.train_tasks=64 "checkpoints=[]" evaluation.yardsticks=false runs_root=main)
    python -m trace_bench method=gepa budget=320 run_dir="$first" "${same[@]}"
    spent=$(python -c 'import json, sys; r = json.load(open(sys.argv[1]))["rollouts"]; print(sum(r.values()) - r["evaluation"])' "$first/summary.json")
    python -m trace_bench method=grpo budget=$((1280 - spent)) agent="$first" "${same[@]}"
}

# collect NAME: the records of a group.
collect() {
    python -m trace_bench.results collect "$1" --out "$here/records/second_$1.jsonl"
}

group main grpo trace others
for seed in 18 19 20 21 22; do chain "$seed"; done
collect main
table tables second_main second_main.jsonl --across trainer.order,trainer.resample
group tasks tasks_grpo tasks_trace
collect tasks
table tables second_8 second_tasks.jsonl env.train_tasks=8
table tables second_2048 second_tasks.jsonl env.train_tasks=2048
table over second_tasks second_tasks.jsonl second_main.jsonl method=grpo,trace budget=1280 trainer.order=shuffled trainer.resample=0 --setting env.train_tasks
group breadth breadth
collect breadth
table over second_breadth second_breadth.jsonl second_main.jsonl method=untargeted,joint,trace --setting method.breadth
table tables second_pools second_breadth.jsonl second_main.jsonl method=untargeted,joint,trace budget=1280
group budgets budgets_grpo budgets_trace
collect budgets
table tables second_budgets second_budgets.jsonl second_main.jsonl method=grpo,trace budget=320,1280,5120 trainer.order=shuffled trainer.resample=0
# Added after the rules: every other way of composing TRACE's adapters, beside the classifier in `main`.
group ladder ladder
collect ladder
table tables second_ladder second_ladder.jsonl second_main.jsonl method=trace budget=1280
