#!/usr/bin/env bash
# The experiment of results/protocol_smollm2.md: results/smollm2.sh FOLDER [JOBS]
# References, the cold start and the runs lie in FOLDER; whatever is finished there is not made again.
# Records go to results/records/smollm2*.jsonl, tables and figures to results/smollm2/. A run takes up to 10 GB.
# `python` must be one that has trace_bench with its plots and its models: pip install -e '.[plots,gguf]'.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$place"

python -m trace_bench.models get smollm2
[ -d references ] || python -m trace_bench.record suite env=toolsandbox split=train_large turns=1 out=references
[ -d references_of_train ] || python -m trace_bench.record suite env=toolsandbox split=train turns=1 out=references_of_train
python -m trace_bench method=sft experiment=smollm2_cold env.train_split=train_large method.data=references/train.jsonl \
    method.demonstrations=640 method.batch=8 policy.threads=2 run_dir=cold
for sweep in grpo trace sft once; do
    python -m trace_bench.sweep "$here/../sweeps/smollm2_$sweep.yaml" --jobs "$jobs"
done
python -m trace_bench.results collect cold --out "$here/records/smollm2_cold.jsonl"
python -m trace_bench.results collect runs --out "$here/records/smollm2.jsonl"
table tables smollm2 smollm2.jsonl
