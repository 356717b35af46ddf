#!/usr/bin/env bash
# The arms of results/phone at temperature 1, without sdpo: results/phone_t1/run.sh [FOLDER [JOBS]] (common/runs.sh)
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../common/runs.sh"

runs() {
    for sweep in rl_3 methods trace rl_1 rl_2 es; do
        sed 's/, sdpo//; s/^parameters:/&\n  policy.eval_temperature:\n    value: 1/' "$here/../phone/$sweep.yaml" >"${sweep}_t1.yaml"
        python -m trace_bench.sweep "${sweep}_t1.yaml" --jobs "$jobs"
    done
    collect records.jsonl
}

tables() {
    table tables records.jsonl --across trainer.name,trainer.algorithm.name
}

all "$@"
