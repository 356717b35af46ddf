"""A summary for tests that need one without a run."""

from __future__ import annotations

from trace_bench.core.summary import AgentScore, EpisodeCounts, Health, Summary

NOTHING = AgentScore(None, None, 0, None, 6)
SUMMARY = Summary(
    complete=True, method="m", learns=False, env="e", suite=None, split="test",
    train_split="train", protocol="held_out", model="tiny", seed=0, budget=1, rollouts={},
    spent=0, unspent=1, why_unspent="the method plays none",
    score=NOTHING, base_score=NOTHING, difference=None, table=(), routing=None, curve=(),
    curve_caveat=None, capabilities=None, adapters=(), wall_s={}, versions={}, git=None,
    health=Health(method=EpisodeCounts(), evaluation=EpisodeCounts()),
    fingerprint="f" * 12, hashes={},
)  # fmt: skip
