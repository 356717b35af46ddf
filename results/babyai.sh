#!/usr/bin/env bash
# What is learned in BabyAI's default levels: results/babyai.sh FOLDER [JOBS]
# The runs lie in FOLDER, five minutes of a core each; whatever is finished there is not run again.
# Records go to results/records/babyai.jsonl, tables and figures to results/babyai/.
# `python` must be one that has trace_bench with its plots and the world: pip install -e '.[plots,babyai]'.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$place"

swept babyai.jsonl babyai
table tables babyai babyai.jsonl
