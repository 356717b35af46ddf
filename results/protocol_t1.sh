#!/usr/bin/env bash
# The experiment of results/protocol_t1.md: results/protocol_t1.sh FOLDER [JOBS]
# The sweeps of protocol_three.sh, evaluated at temperature 1. The runs lie in FOLDER, a minute of a core each; whatever is
# finished there is not run again. Records go to results/records/t1.jsonl, tables and figures to results/t1/.
# `python` must be one that has trace_bench with its plots: pip install -e '.[plots]'.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$place"

for sweep in three_rl_3 three_methods three_trace three_rl_1 three_rl_2 three_es; do
    sed 's/, sdpo//; s/^parameters:/&\n  policy.eval_temperature:\n    value: 1/' "$here/../sweeps/$sweep.yaml" >"${sweep}_t1.yaml"
    python -m trace_bench.sweep "${sweep}_t1.yaml" --jobs "$jobs" --fork
done
python -m trace_bench.results collect runs --out "$here/records/t1.jsonl"
table tables t1 t1.jsonl --across trainer.name,trainer.algorithm.name
