#!/usr/bin/env bash
# Tasks that need several skills at once: results/needs/run.sh [FOLDER [JOBS]] (common/runs.sh)
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../common/runs.sh"

runs() {
    swept search_joint search_grpo search_sum search_context
    collect search.jsonl evaluation.split=dev
    swept direct random joint trace context context_all levels
    untargeted
    collect records.jsonl evaluation.split=test
    (mkdir -p curve && cd curve && curve)
    mkdir -p doors && cd doors
    swept doors_grpo doors_joint doors_random doors_trace
    collect doors.jsonl
}

# Success over rollouts; at 2,560 the runs of GRPO and of the joint adapter are among those above.
curve() {
    swept curve_joint curve_grpo curve_gepa
    local above=("$here/records.jsonl" env.needs=3 budget=2560 seed=10,11,12,13,14)
    python -m trace_bench.results collect runs --out new.jsonl
    python -m trace_bench.results collect "${above[@]}" method=grpo --out grpo.jsonl
    python -m trace_bench.results collect "${above[@]}" method=joint method.in_context=0.5 --out joint.jsonl
    cat new.jsonl grpo.jsonl joint.jsonl >"$here/curve.jsonl"
}

# Made tasks of every capability, then the target: the second run begins with the first one's agent.
untargeted() {
    for seed in {10..17}; do
        same=(env.needs=3 seed="$seed" "checkpoints=[]" evaluation.yardsticks=false)
        python -m trace_bench "${same[@]}" method=untargeted budget=1920 run_dir="first/$seed"
        python -m trace_bench "${same[@]}" agent="first/$seed" method=grpo method.reward=success budget=640 run_dir="runs/untargeted/$seed"
    done
}

tables() {
    python ../search/search.py search.jsonl env.needs=3 --out search_3
    python ../search/search.py search.jsonl env.needs=2 --out search_2
    table tables_3 records.jsonl env.needs=3
    table tables_2 records.jsonl env.needs=2
    table tables_1 records.jsonl env.needs=1
    table tables_curve curve.jsonl
    table tables_doors_3 doors.jsonl suite=babyai/Doors3
    table tables_doors_2 doors.jsonl suite=babyai/Doors2
    table tables_doors_1 doors.jsonl suite=babyai/Doors1
}

all "$@"
