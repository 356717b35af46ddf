#!/usr/bin/env bash
# What methods gain over their base agents, world by world, from the records of four experiments: results/worlds/run.sh
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../common/runs.sh"

tables() {
    python worlds.py ../phone/records.jsonl ../phone_t1/records.jsonl ../lakes/records.jsonl ../babyai/arms.jsonl ../babyai/rest.jsonl \
        --across trainer.name,trainer.algorithm.name --out .
}

all
