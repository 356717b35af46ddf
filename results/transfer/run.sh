#!/usr/bin/env bash
# What one world teaches that another needs: results/transfer/run.sh [FOLDER [JOBS]] (common/runs.sh)
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../common/runs.sh"

runs() {
    cp "$here/together.py" .
    python -m trace_bench.tiny make env.factory=together:Suite policy.max_turns=40 out=models/both size=0.3 hasty=0 demonstrations=4000 passes=12 minutes=60
    swept others placebo
    collect records.jsonl
}

tables() {
    table tables records.jsonl --across env.options.learn
}

all "$@"
