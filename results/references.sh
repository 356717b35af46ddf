#!/usr/bin/env bash
# The experiment of results/protocol_references.md: results/references.sh FOLDER [JOBS]
# The runs lie in FOLDER, half a minute of a core each in the phone world and two on the lakes; whatever is finished
# there is not run again. Records go to results/records/references_*.jsonl, tables and figures to results/references_*/.
# `python` must be one that has trace_bench with its plots and the world: pip install -e '.[plots,textarena]'.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$place"

# chain WORLD SEED [DATA] -- SETTING...: demonstrations (of DATA) without a rollout, then GRPO from that agent.
chain() {
    local world=$1 seed=$2 data=()
    shift 2
    [ "$1" = -- ] || { data=(method.data="$1"); shift; }
    shift
    local same=(seed="$seed" budget=1280 "checkpoints=[]" evaluation.yardsticks=false "$@")
    python -m trace_bench method=sft "${data[@]}" run_dir="$world/sft_$seed" "${same[@]}"
    python -m trace_bench method=grpo agent="$world/sft_$seed" run_dir="$world/after_$seed" "${same[@]}"
}
export -f chain

# world NAME ARGUMENT...: the sweep of a world, and a chain for each seed that comes on standard input.
world() {
    local name=$1
    shift
    python -m trace_bench.sweep "$here/../sweeps/references_$name.yaml" --jobs "$jobs" --fork --runs-root "$name"
    xargs -P "$jobs" -I SEED bash -c 'chain "$@"' _ "$name" SEED "$@"
    python -m trace_bench.results collect "$name" --out "$here/records/references_$name.jsonl"
}

# Sixteen demonstrations of each of the 64 tasks, in as many files.
for n in $(seq 0 15); do
    [ -f "shown/$n.jsonl" ] || python -m trace_bench.tiny demonstrate env=toolsandbox split=train_large count=64 seed="$n" out="shown/$n.jsonl"
done
seq 60 67 | world phone shown -- env.train_split=train_large env.train_tasks=64
seq 50 55 | world lakes -- env=textarena trainer.learning_rate=0.001
table tables references_phone references_phone.jsonl --across trainer.algorithm.name
table tables references_lakes references_lakes.jsonl lakes.jsonl method=rl,sft,grpo trainer.algorithm.name=grpo,opsd --across trainer.algorithm.name
