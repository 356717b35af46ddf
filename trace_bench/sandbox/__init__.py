"""Sandboxes: run environments in worker processes or containers, behind the same `Env` protocol."""
