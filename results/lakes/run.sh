#!/usr/bin/env bash
# Sixteen arms on frozen lakes: results/lakes/run.sh [FOLDER [JOBS]] (common/runs.sh)
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../common/runs.sh"

runs() {
    swept rl methods trace es
    collect records.jsonl
}

tables() {
    table tables records.jsonl --across trainer.name,trainer.algorithm.name
}

all "$@"
