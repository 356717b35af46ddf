#!/usr/bin/env bash
# The experiment of results/protocol_targeted.md: results/targeted.sh FOLDER [JOBS]
# Agents (25 to 45 minutes of a core each) and runs (half a minute each) lie in FOLDER; whatever is finished there is not made
# again. Records go to results/records/targeted.jsonl, tables and figures to results/targeted/ and
# results/targeted_*/.
# `python` must be one that has trace_bench with its plots: pip install -e '.[plots]'.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$place"

printf '%s\n' 1 5 | xargs -P "$jobs" -I N python -m trace_bench.tiny build out=agents/N rare=0.0N
python - <<'SHIPPED'
import shutil
from trace_bench.tiny import MODEL_FOLDER
shutil.copytree(MODEL_FOLDER, "agents/shipped", dirs_exist_ok=True)
SHIPPED
swept targeted.jsonl targeted targeted_trace
table against targeted targeted.jsonl --setting model.path,method.reward
table tables targeted_1 targeted.jsonl model.path=agents/1
table tables targeted_5 targeted.jsonl model.path=agents/5
table tables targeted_shipped targeted.jsonl model.path=agents/shipped
