"""GEPA, evolution of the prompt by reflection, done by the package of that name."""

from trace_bench.methods.gepa.method import Gepa

__all__ = ["Gepa"]
