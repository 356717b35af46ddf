#!/usr/bin/env bash
# Sixteen arms in BabyAI: four first, whose records are arms.jsonl, then twelve: results/babyai/run.sh [FOLDER [JOBS]] (common/runs.sh)
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../common/runs.sh"

runs() {
    swept arms arms_rloo
    collect arms.jsonl method=grpo,placebo,trace,rl
    swept es soft methods rl
    collect rest.jsonl
}

tables() {
    table tables arms.jsonl rest.jsonl --across trainer.name,trainer.algorithm.name
}

all "$@"
