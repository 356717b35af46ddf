#!/usr/bin/env bash
# The experiment of results/protocol_transfer.md: results/transfer.sh FOLDER [JOBS]
# The agent (some 10 minutes of a core) and the runs (two to twelve minutes each on a busy machine) lie in FOLDER; whatever is finished there is not made
# again. Records go to results/records/transfer.jsonl, tables and figures to results/transfer/.
# `python` must be one that has trace_bench with its plots and the world: pip install -e '.[plots,babyai,textarena]'.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$place"

cp "$here/together.py" .
python -m trace_bench.tiny make env.factory=together:Suite policy.max_turns=40 out=models/both size=0.3 minutes=60
swept transfer.jsonl transfer transfer_placebo
table tables transfer transfer.jsonl --across env.options.learn
