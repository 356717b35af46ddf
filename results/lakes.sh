#!/usr/bin/env bash
# The experiment of results/protocol_lakes.md: results/lakes.sh FOLDER [JOBS]
# The runs lie in FOLDER, two minutes of a core each; whatever is finished there is not run again.
# Records go to results/records/lakes.jsonl, tables and figures to results/lakes/.
# `python` must be one that has trace_bench with its plots and the world: pip install -e '.[plots,textarena]'.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$place"

swept lakes.jsonl lakes_rl lakes_methods lakes_trace lakes_es
table tables lakes lakes.jsonl --across trainer.name,trainer.algorithm.name
