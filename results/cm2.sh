#!/usr/bin/env bash
# The experiment of results/protocol_cm2.md: results/cm2.sh FOLDER [JOBS]
# Recordings and runs lie in FOLDER; whatever is finished there is not made again. Records go to
# results/records/cm2_*.jsonl, tables and figures to results/cm2/.
# `python` must be one that has trace_bench with its plots: pip install -e '.[plots]'.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$place"

python -m trace_bench.record suite env=toolsandbox split=dialogues out=recordings/phone
for sweep in levels rewards real judge tools simulator items; do
    python -m trace_bench.sweep "$here/../sweeps/cm2_$sweep.yaml" --jobs "$jobs"
done

# collect NAME FILTER...: the records of these runs, in a file of their own.
collect() {
    local name=$1
    shift
    python -m trace_bench.results collect runs "$@" --out "$here/records/cm2_$name.jsonl"
}

plain=(training.env.tools=simulate training.env.wrong=0.0 training.env.misses=0.0)
whole=(method.weights=true method.dependencies=true)
collect levels method=cm2 "${plain[@]}" "${whole[@]}"
collect rewards method=grpo
collect judge method=cm2 method.level=turn budget=1280
collect tools method=cm2 method.level=trajectory budget=1280 "${whole[@]}"
collect items method=cm2 method.level=trajectory budget=1280 "${plain[@]}"
table tables cm2/rewards cm2_levels.jsonl cm2_rewards.jsonl
table tables cm2/judge cm2_judge.jsonl
table over cm2/judge cm2_judge.jsonl --setting training.env.misses,training.env.alarms,training.judge_errors
table tables cm2/tools cm2_tools.jsonl
table over cm2/tools cm2_tools.jsonl --setting training.env.wrong,training.env.stale,training.env.inconsistent,training.simulator_errors
table tables cm2/items cm2_items.jsonl
