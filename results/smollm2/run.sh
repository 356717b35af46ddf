#!/usr/bin/env bash
# A pretrained language model, and the tiny agent in three sizes: results/smollm2/run.sh [FOLDER [JOBS]] (common/runs.sh)
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../common/runs.sh"

runs() {
    python -m trace_bench.models get smollm2
    [ -d references ] || python -m trace_bench.record suite env=toolsandbox split=train_large turns=1 out=references
    [ -d references_of_train ] || python -m trace_bench.record suite env=toolsandbox split=train turns=1 out=references_of_train
    python -m trace_bench method=sft experiment=smollm2_cold env.train_split=train_large method.data=references/train.jsonl \
        method.demonstrations=640 method.batch=8 policy.threads=2 run_dir=cold
    swept grpo trace sft once
    python -m trace_bench.results collect cold --out "$here/cold.jsonl"
    collect records.jsonl
    mkdir -p sizes && cd sizes
    [ -f tiny_small/README.md ] || python -m trace_bench.tiny build out=tiny_small size=0.3
    [ -f tiny_large/README.md ] || python -m trace_bench.tiny build out=tiny_large size=4.3
    [ -d tiny_medium ] || cp -r "$(python -c 'from trace_bench.tiny import MODEL_FOLDER; print(MODEL_FOLDER)')" tiny_medium
    swept sizes_grpo sizes_trace
    collect sizes.jsonl
}

tables() {
    table tables records.jsonl
    python sizes.py sizes.jsonl records.jsonl method=grpo,trace --out sizes
}

all "$@"
