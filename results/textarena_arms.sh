#!/usr/bin/env bash
# The experiment of results/protocol_textarena.md: results/textarena_arms.sh FOLDER [JOBS]
# The runs lie in FOLDER, three minutes of a core each; whatever is finished there is not run again.
# Records go to results/records/textarena_arms.jsonl, tables and figures to results/textarena_arms/.
# `python` must be one that has trace_bench with its plots and the world: pip install -e '.[plots,textarena]'.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$place"

swept textarena_arms.jsonl textarena_arms textarena_arms_rloo
table tables textarena_arms textarena_arms.jsonl --across trainer.name
