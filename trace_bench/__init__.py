"""trace_bench: rollout-matched comparisons of methods that train LLM agents."""

__version__ = "0.1.0"
