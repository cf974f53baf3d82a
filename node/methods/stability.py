"""How strongly NoLoCo's replicas may pull each other (noloco.py): arithmetic on settings alone."""

from __future__ import annotations


def gamma_limit(alpha: float, group: int = 2) -> float:
    """Where stability ends; 0 <= alpha < 1, and a group has two or more."""
    if not 0 <= alpha < 1:
        raise ValueError(f"alpha, the momentum, is {alpha}; it must be at least 0 and less than 1")
    if group < 2:
        raise ValueError(f"a group of {group} has nobody to exchange with; it needs at least 2")
    return 2 * (1 - alpha * alpha) / (1 - alpha * (1 - 2 / group))


def check_stability(alpha: float, gamma: float, group: int = 2) -> None:
    """ValueError if replicas with this momentum and this pull would drift apart."""
    limit = gamma_limit(alpha, group)
    if not 0 < gamma < limit:
        raise ValueError(
            f"gamma, the pull, is {gamma}; with alpha = {alpha} and groups of {group} "
            f"replicas stay together only if it is more than 0 and less than {limit:.4g}"
        )
