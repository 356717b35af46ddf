#!/usr/bin/env bash
# The experiment of results/protocol_babyai.md: results/three_babyai.sh FOLDER [JOBS]
# The runs lie in FOLDER, five minutes of a core each; whatever is finished there is not run again.
# Records go to results/records/three_babyai.jsonl, tables and figures to results/three_babyai/.
# `python` must be one that has trace_bench with its plots and the world: pip install -e '.[plots,babyai]'.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$place"

for sweep in "$here"/../sweeps/three_babyai*.yaml; do
    python -m trace_bench.sweep "$sweep" --jobs "$jobs" --fork
done
python -m trace_bench.results collect runs --out "$here/records/three_babyai.jsonl"
table tables three_babyai three_babyai.jsonl --across trainer.name
