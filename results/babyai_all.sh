#!/usr/bin/env bash
# The experiment of results/protocol_babyai_all.md: results/babyai_all.sh FOLDER [JOBS]
# The runs lie in FOLDER, six minutes of a core each; whatever is finished there is not run again.
# Records go to results/records/babyai_rest.jsonl, tables and figures to results/babyai_all/, and those
# of this world beside the others to results/worlds/.
# `python` must be one that has trace_bench with its plots and the world: pip install -e '.[plots,babyai]'.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$place"

swept babyai_rest.jsonl babyai_es babyai_soft babyai_methods babyai_rl
table tables babyai_all babyai_arms.jsonl babyai_rest.jsonl --across trainer.name,trainer.algorithm.name
table worlds worlds three.jsonl t1.jsonl lakes.jsonl babyai_arms.jsonl babyai_rest.jsonl --across trainer.name,trainer.algorithm.name
