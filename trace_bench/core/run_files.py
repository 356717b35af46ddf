"""Names of the files in a run folder and of keys in them, for the code that writes or reads it."""

from __future__ import annotations

CONFIG = "config.yaml"
SUMMARY = "summary.json"
FAULTS = "failures.txt"
"""Tracebacks of exceptions that ended episodes."""

ELSEWHERE = ("run_dir", "runs_root", "tracker", "experiment", "sandbox", "dry_run", "max_lost")
"""Keys of config.yaml that do not change what a run computes (where it is written, its name, where
its environments run, when it stops). They are not part of its identity."""

FLOORS = ("idle", "random", "reference")
"""The scripted policies that every run evaluates: two lower bounds and an upper bound."""

OWN = (
    CONFIG, SUMMARY, "agent.json", "timing.json", "ledger.jsonl", "trajectories.jsonl",
    "evaluation.jsonl", "evaluation_trajectories.jsonl", "curve.jsonl", "routing.jsonl",
    "metrics.jsonl", "llm.jsonl", FAULTS,
)  # fmt: skip
"""The files that the run itself writes; a method writes others."""

HASHED = (
    "ledger.jsonl", "evaluation.jsonl", "curve.jsonl", "metrics.jsonl", "capabilities.json",
    "trajectories.jsonl", "evaluation_trajectories.jsonl",
)  # fmt: skip
"""The files whose hashes are in summary.json."""
