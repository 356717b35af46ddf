#!/usr/bin/env bash
# The experiment of results/protocol_babyai.md: results/babyai_arms.sh FOLDER [JOBS]
# The runs lie in FOLDER, five minutes of a core each; whatever is finished there is not run again.
# Records go to results/records/babyai_arms.jsonl, tables and figures to results/babyai_arms/.
# `python` must be one that has trace_bench with its plots and the world: pip install -e '.[plots,babyai]'.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$place"

swept babyai_arms.jsonl babyai_arms babyai_arms_rloo
table tables babyai_arms babyai_arms.jsonl --across trainer.name
