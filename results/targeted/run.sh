#!/usr/bin/env bash
# Where targeted training pays: results/targeted/run.sh [FOLDER [JOBS]] (common/runs.sh)
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../common/runs.sh"

runs() {
    printf '%s\n' 1 5 | xargs -P "$jobs" -I N python -m trace_bench.tiny build out=agents/N rare=0.0N
    [ -d agents/shipped ] || cp -r "$(python -c 'from trace_bench.tiny import MODEL_FOLDER; print(MODEL_FOLDER)')" agents/shipped
    swept others trace
    collect records.jsonl
}

tables() {
    python against.py records.jsonl --setting model.path,method.reward --out against
    table tables_1 records.jsonl model.path=agents/1
    table tables_5 records.jsonl model.path=agents/5
    table tables_shipped records.jsonl model.path=agents/shipped
}

all "$@"
