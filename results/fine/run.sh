#!/usr/bin/env bash
# TRACE and two algorithms with 22 seeds: results/fine/run.sh [FOLDER [JOBS]] (common/runs.sh)
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../common/runs.sh"

runs() {
    swept rl trace
    collect records.jsonl
}

tables() {
    table tables records.jsonl --across trainer.algorithm.name
}

all "$@"
