#!/usr/bin/env bash
# References against rollouts, in two worlds: results/references/run.sh [FOLDER [JOBS]] (common/runs.sh)
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../common/runs.sh"

# chain WORLD SEED [DATA] -- SETTING...: demonstrations, then rollouts from what they made.
chain() {
    local world=$1 seed=$2 data=()
    shift 2
    [ "$1" = -- ] || { data=(method.data="$1"); shift; }
    shift
    local same=(seed="$seed" budget=1280 "checkpoints=[]" evaluation.yardsticks=false "$@")
    python -m trace_bench method=sft "${data[@]}" run_dir="$world/sft_$seed" "${same[@]}"
    python -m trace_bench method=grpo agent="$world/sft_$seed" run_dir="$world/after_$seed" "${same[@]}"
}

# world NAME [DATA] -- SETTING...: the sweep of a world, and the chains of the seeds that are read.
world() {
    local name=$1
    shift
    python -m trace_bench.sweep "$here/$name.yaml" --jobs "$jobs" --runs-root "$name"
    xargs -P "$jobs" -I SEED bash -c 'chain "$@"' _ "$name" SEED "$@"
    python -m trace_bench.results collect "$name" --out "$here/$name.jsonl"
}

runs() {
    for n in $(seq 0 15); do
        [ -f "shown/$n.jsonl" ] || python -m trace_bench.tiny demonstrate env=toolsandbox split=train_large count=64 seed="$n" out="shown/$n.jsonl"
    done
    export -f chain
    seq 60 67 | world phone shown -- env.train_split=train_large env.train_tasks=64
    seq 50 55 | world lakes -- env=textarena trainer.learning_rate=0.001
}

tables() {
    table tables_phone phone.jsonl --across trainer.algorithm.name
    table tables_lakes lakes.jsonl ../lakes/records.jsonl method=rl,sft,grpo trainer.algorithm.name=grpo,opsd --across trainer.algorithm.name
}

all "$@"
