#!/usr/bin/env bash
# The paper's tables and figures, from paper.json: results/paper/run.sh
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../common/runs.sh"

tables() {
    python paper.py
}

all
