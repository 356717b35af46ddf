#!/usr/bin/env bash
# Sixteen arms in the phone world: results/phone/run.sh [FOLDER [JOBS]] (common/runs.sh)
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../common/runs.sh"

runs() {
    swept es methods rl_1 rl_2 rl_3 trace
    collect records.jsonl
}

tables() {
    table tables records.jsonl --across trainer.name,trainer.algorithm.name
}

all "$@"
