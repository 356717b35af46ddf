#!/usr/bin/env bash
# Four algorithms at three budgets; those at 1,280 are the runs of results/phone: results/budgets/run.sh [FOLDER [JOBS]] (common/runs.sh)
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../common/runs.sh"

runs() {
    swept 2 3
    collect records.jsonl
}

tables() {
    table tables records.jsonl ../phone/records.jsonl method=rl trainer.algorithm.name=grpo,dapo,rloo,gigpo trainer.name=local --across trainer.algorithm.name
}

all "$@"
