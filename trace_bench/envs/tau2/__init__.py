"""τ²-bench: tasks, databases, policies and tools of the package inspect-evals, run by our own state
machine (reset, step, score) instead of its evaluation loop."""
