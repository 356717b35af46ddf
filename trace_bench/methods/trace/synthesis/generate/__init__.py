"""Environments that a language model writes (generation.py), and what they must pass first."""
