#!/usr/bin/env bash
# Tasks that need several skills at once: results/needs/run.sh [FOLDER [JOBS]] (common.sh)
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

runs() {
    swept search_joint search_grpo search_sum
    collect search.jsonl evaluation.split=dev
    swept direct random joint trace levels
    collect records.jsonl evaluation.split=test
}

tables() {
    python ../search/search.py search.jsonl env.needs=3 --out search_3
    python ../search/search.py search.jsonl env.needs=2 --out search_2
    table tables_3 records.jsonl env.needs=3
}

all "$@"
