"""Batched inference in this process: the scheduler and the models behind it."""
