#!/usr/bin/env bash
# Everything in results/records and results/embedded again: results/make.sh FOLDER [JOBS]
# The runs lie in FOLDER, one subfolder a sweep; whatever is finished there is not run again.
# `python` must be one that has trace_bench with its plots: pip install -e '.[plots]'.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
place=$(mkdir -p "$1" && cd "$1" && pwd)
jobs=${2:-2}

# record NAME SWEEP...: runs the sweeps in a folder of their own and collects their records.
record() {
    local name=$1 sweep
    shift
    mkdir -p "$place/$name"
    for sweep in "$@"; do
        (cd "$place/$name" && python -m trace_bench.sweep "$here/../sweeps/$sweep.yaml" --jobs "$jobs")
    done
    python -m trace_bench.results collect "$place/$name/runs" --out "$here/records/$name.jsonl"
}

# table COMMAND RECORDS...: tables and figures from committed records.
table() {
    local command=$1
    shift
    (cd "$here/records" && python -m trace_bench.results "$command" "$@" --out ../embedded)
}

record search search_prompt_only search_gepa search_trainer search_sft
record rollout_scaling rollout_scaling
record training_tasks training_tasks
record capabilities capabilities
table search search.jsonl
table tables rollout_scaling.jsonl
table paper rollout_scaling.jsonl
table map training_tasks.jsonl rollout_scaling.jsonl
table capabilities capabilities.jsonl
