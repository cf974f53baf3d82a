"""Registers the packages that a plain node does not need; each process that may meet one of their runs calls this."""

from __future__ import annotations

from shoal.node.base.extensions import Extension, register


def register_extensions() -> None:
    """Register all extensions by the names of their models and data; they are imported when they are used."""
    register(("flow", "router", "digits"), _diffusion)


def _diffusion() -> Extension:
    from shoal.node.diffusion.extension import EXTENSION

    return EXTENSION
