#!/usr/bin/env bash
# Everything in results/records, results/embedded and results/paper again: results/make.sh FOLDER [JOBS]
# The runs lie in FOLDER, one subfolder a sweep; whatever is finished there is not run again.
# `python` must be one that has trace_bench with its plots: pip install -e '.[plots]'.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

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

record search search_prompt_only search_gepa search_trainer search_trace search_sft
record rollout_scaling rollout_scaling rollout_scaling_trace
record training_tasks training_tasks training_tasks_trace
record capabilities capabilities capabilities_trace
table search embedded search.jsonl
table tables embedded rollout_scaling.jsonl
table paper paper rollout_scaling.jsonl
table map embedded training_tasks.jsonl rollout_scaling.jsonl
table capabilities embedded capabilities.jsonl
