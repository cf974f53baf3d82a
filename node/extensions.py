"""The packages that a plain node does without. A process that may meet a run of theirs registers them as it starts."""

from __future__ import annotations

from shoal.node.base.extensions import Extension, register


def register_extensions() -> None:
    """Nothing is imported yet."""
    register(("flow", "router", "digits"), _diffusion)


def _diffusion() -> Extension:
    from shoal.node.diffusion.extension import EXTENSION

    return EXTENSION
