"""Supervised fine-tuning on demonstrations: a LoRA adapter without any rollout."""

from trace_bench.methods.sft.method import Sft

__all__ = ["Sft"]
