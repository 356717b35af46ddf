#!/usr/bin/env bash
# The experiment of results/protocol.md: results/protocol.sh FOLDER [JOBS]
# Runs lie in FOLDER; whatever is finished there is not made again. Records go to
# results/records/protocol.jsonl, tables and figures to results/protocol/.
# `python` must be one that has trace_bench with its plots: pip install -e '.[plots]'.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
place=$(mkdir -p "$1" && cd "$1" && pwd)
jobs=${2:-2}
cd "$place"

for sweep in trace target prioritized few_trace few_target few_prioritized; do
    python -m trace_bench.sweep "$here/../sweeps/protocol_$sweep.yaml" --jobs "$jobs"
done
python -m trace_bench.results collect runs --out "$here/records/protocol.jsonl"

# table COMMAND FILTER: GRPO with prioritized tasks stands beside the others.
table() {
    python -m trace_bench.results "$1" "$here/records/protocol.jsonl" "$2" \
        --across trainer.order,trainer.resample --out "$here/protocol"
}
table tables env.train_tasks=64
table map budget=1280
