"""The inner learning rate: warm-up, stable, decay (WSD; arXiv 2404.06395).

It is a pure function of the global inner step, so a peer that joins in round 500 trains at the same rate as the others.
In a run without a last round the stable phase never ends.
"""

from __future__ import annotations

from shoal.node.manifest.manifest import Manifest


def lr_factor(step: int, *, warmup: int, total: int | None, decay_share: float) -> float:
    """The factor of the peak learning rate at global inner step `step`, from 0.

    It rises linearly to 1 within the first `warmup` steps, and falls linearly within the last `decay_share` of `total`
    steps, to 0 one step after the last. If the two overlap, the lower value counts.
    """
    rise = min(1.0, (step + 1) / warmup) if warmup else 1.0
    decay = round(decay_share * total) if total is not None else 0
    fall = min(1.0, max(0.0, (total - step) / decay)) if total is not None and decay else 1.0
    return min(rise, fall)


def rate(manifest: Manifest, step: int, total: int | None) -> float:
    """The learning rate of a run's inner step `step` (from 0); `total` is its number of steps, if it has an end."""
    method = manifest.method
    return method.inner_lr * lr_factor(step, warmup=method.warmup_steps, total=total, decay_share=method.decay_share)
