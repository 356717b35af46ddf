#!/usr/bin/env bash
# The experiment of results/protocol.md: results/protocol.sh FOLDER [JOBS]
# Runs lie in FOLDER; whatever is finished there is not made again. Records go to
# results/records/protocol.jsonl, tables and figures to results/protocol_64 and protocol_16.
# `python` must be one that has trace_bench with its plots: pip install -e '.[plots]'.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$place"

for sweep in trace target prioritized few_trace few_target few_prioritized; do
    python -m trace_bench.sweep "$here/../sweeps/protocol_$sweep.yaml" --jobs "$jobs"
done
python -m trace_bench.results collect runs --out "$here/records/protocol.jsonl"
table tables protocol_64 protocol.jsonl env.train_tasks=64 --across trainer.order,trainer.resample
table tables protocol_16 protocol.jsonl env.train_tasks=16 --across trainer.order,trainer.resample
table map protocol_64 protocol.jsonl budget=1280 --across trainer.order,trainer.resample
