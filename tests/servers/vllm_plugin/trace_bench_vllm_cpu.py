"""Corrections for the CPU build of vLLM 0.32.0, loaded into its processes as a plug-in.

In a batch of base model and adapters, rows without an adapter have the index -1. The GPU's kernels
skip them; the CPU's take it as Python does, for the last slot, where the warm-up has left a dummy
adapter: the base model then answers with other probabilities than it has (seen here: up to 0.4 in a
log-probability). With the rows' inputs at zero nothing is added to them.

With adapters switched on, a mixture of experts is given the kernels that can take adapters in its
experts, which are Triton's alone, whatever --lora-target-modules says; there is no Triton for CPUs,
and the first request ends the engine. Without the mark, the experts have the CPU's own kernels.
"""

from typing import Any


def register() -> None:
    from vllm.lora.ops import torch_ops
    from vllm.lora.ops.torch_ops import lora_ops
    from vllm.lora.punica_wrapper import punica_cpu
    from vllm.model_executor.layers.fused_moe.config import FusedMoEConfig

    plain = lora_ops.bgmv_shrink

    def bgmv_shrink(
        inputs: Any, weights: Any, output: Any, indices: Any, scaling: float = 1.0
    ) -> None:
        masked = inputs * (indices >= 0).to(inputs.dtype).unsqueeze(1)
        plain(masked, weights, output, indices, scaling)

    for module in (lora_ops, torch_ops, punica_cpu):
        module.bgmv_shrink = bgmv_shrink  # type: ignore[attr-defined]

    whole = FusedMoEConfig.__init__

    def without_mark(self: Any, *args: Any, **given: Any) -> None:
        whole(self, *args, **{**given, "is_lora_enabled": False})

    FusedMoEConfig.__init__ = without_mark  # type: ignore[method-assign]
