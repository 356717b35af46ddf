#!/usr/bin/env bash
# Checklist rewards on recorded dialogues: results/cm2/run.sh [FOLDER [JOBS]] (common/runs.sh)
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../common/runs.sh"

runs() {
    python -m trace_bench.record suite env=toolsandbox split=dialogues out=recordings/phone
    swept levels rewards real judge tools simulator items
    local plain=(training.env.tools=simulate training.env.wrong=0.0 training.env.misses=0.0)
    local whole=(method.weights=true method.dependencies=true)
    collect levels.jsonl method=cm2 "${plain[@]}" "${whole[@]}"
    collect rewards.jsonl method=grpo
    collect judge.jsonl method=cm2 method.level=turn budget=1280
    collect tools.jsonl method=cm2 method.level=trajectory budget=1280 "${whole[@]}"
    collect items.jsonl method=cm2 method.level=trajectory budget=1280 "${plain[@]}"
}

tables() {
    table tables_rewards levels.jsonl rewards.jsonl
    table tables_judge judge.jsonl
    python over.py judge.jsonl --setting training.env.misses,training.env.alarms,training.judge_errors --out tables_judge
    table tables_tools tools.jsonl
    python over.py tools.jsonl --setting training.env.wrong,training.env.stale,training.env.inconsistent,training.simulator_errors --out tables_tools
    table tables_items items.jsonl
}

all "$@"
