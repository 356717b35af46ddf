#!/usr/bin/env bash
# GRPO in four invented worlds, with agents made for them: results/own_worlds/run.sh [FOLDER [JOBS]] (common/runs.sh)
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../common/runs.sh"

runs() {
    export PYTHONPATH="$here:$PYTHONPATH"
    swept runs
    collect records.jsonl
}

tables() {
    python ../worlds/worlds.py records.jsonl --out .
}

all "$@"
