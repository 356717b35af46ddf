"""Tasksets of verifiers v1, played in the worker's process: `suite` the tasks, `rollout` an
episode, `needs` what cannot be played so."""
