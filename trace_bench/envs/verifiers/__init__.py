"""Tasksets of verifiers v1, played in the worker's process: `suite` the tasks, and what cannot be
played so, `rollout` an episode."""
