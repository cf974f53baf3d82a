"""The inner learning rate: warm-up, stable, decay (WSD; arXiv 2404.06395).

A pure function of the global inner step, so that a peer that joins in round 500 trains at the rate of the
others. Without a last round there is nothing to decay towards and the stable phase never ends.
"""

from __future__ import annotations

from shoal.node.manifest.manifest import Manifest


def lr_factor(step: int, *, warmup: int, total: int | None, decay_share: float) -> float:
    """What the peak learning rate is multiplied by at global inner step `step`.

    Rises linearly to 1 within the first `warmup` steps; falls linearly towards 0, reached one step after the
    last, within the last `decay_share` of `total` steps. Where the two overlap, the lower one counts.
    """
    rise = min(1.0, (step + 1) / warmup) if warmup else 1.0
    decay = round(decay_share * total) if total is not None else 0
    fall = min(1.0, max(0.0, (total - step) / decay)) if total is not None and decay else 1.0
    return min(rise, fall)


def rate(manifest: Manifest, step: int, total: int | None) -> float:
    """The learning rate of a run's inner step `step` (from 0), of `total`, if the run has an end."""
    method = manifest.method
    return method.inner_lr * lr_factor(step, warmup=method.warmup_steps, total=total, decay_share=method.decay_share)
