"""τ²-bench: tasks, databases, policies and tools of the package inspect-evals, played by a state
machine of our own (reset, step, score) instead of its evaluation loop."""
