#!/usr/bin/env bash
# The same effort for every method's and every algorithm's settings, on development tasks: results/search/run.sh [FOLDER [JOBS]] (common/runs.sh)
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../common/runs.sh"

runs() {
    mkdir -p methods algorithms
    (cd methods && swept prompt_only gepa trainer trace sft && collect methods.jsonl)
    (cd algorithms && swept algorithms es && collect algorithms.jsonl)
}

tables() {
    python search.py methods.jsonl --out tables
    python search.py algorithms.jsonl --across trainer.name,trainer.algorithm.name --out tables_algorithms
}

all "$@"
