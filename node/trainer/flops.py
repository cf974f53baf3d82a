"""How many floating-point operations training takes by arithmetic, and so how well a device is used.

Model FLOPs utilization (MFU; Chowdhery et al., PaLM, arXiv 2204.02311, appendix B) is what the model needs for the
tokens that were trained on, by what the device could have done in that time. What is computed twice to save memory does
not count.
"""

from __future__ import annotations

from shoal.node.spec.manifest import ModelSpec
from shoal.node.spec.requirements import parameters


def flops_per_token(spec: ModelSpec) -> int:
    """Forward and backward: 6 N + 12 L D T, of N weights in products, L layers of dimension D and T tokens of context.

    A weight is multiplied and added once forward and twice backward. Attention has two products of T x D in each layer,
    counted as if it saw the whole context, as is usual. An embedding that is no head is looked up, not multiplied.
    """
    weights = parameters(spec) - (0 if spec.tied else spec.vocab * spec.dim)
    return 6 * weights + 12 * spec.layers * spec.dim * spec.context


def utilization(flops: int, tokens_per_second: float, peak: float | None) -> float | None:
    """MFU of training that takes `flops` a token on a device that can do `peak` a second; None if nobody knows."""
    return flops * tokens_per_second / peak if peak else None
