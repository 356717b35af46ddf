#!/usr/bin/env bash
# The tiny agent in three sizes, for results/protocol_smollm2.md: results/sizes.sh FOLDER [JOBS]
# Building the large one takes over an hour of a core. Models and runs lie in FOLDER; whatever is finished there is
# not made again. Records go to results/records/sizes.jsonl, table and figure, with SmolLM2's, to results/sizes/.
# `python` must be one that has trace_bench with its plots: pip install -e '.[plots]'.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$place"

[ -f tiny_small/README.md ] || python -m trace_bench.tiny build out=tiny_small size=0.3
[ -f tiny_large/README.md ] || python -m trace_bench.tiny build out=tiny_large size=4.3
shipped=$(python -c 'from trace_bench.tiny import MODEL_FOLDER; print(MODEL_FOLDER)')
mkdir -p tiny_medium && cp "$shipped"/* tiny_medium/
for sweep in grpo trace; do
    python -m trace_bench.sweep "$here/../sweeps/sizes_$sweep.yaml" --jobs "$jobs"
done
python -m trace_bench.results collect runs --out "$here/records/sizes.jsonl"
table sizes sizes sizes.jsonl smollm2.jsonl method=grpo,trace
