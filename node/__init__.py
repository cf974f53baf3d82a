"""The daemon, its command line and HTTP API, the worker, and the training code.

For scripts of one's own: `from shoal.node import create, join` (docs/scripts.md); torch is imported with these.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shoal.node.client.script.api import create as create
    from shoal.node.client.script.api import join as join

__all__ = ("create", "join")


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from shoal.node.client.script import api

    return getattr(api, name)
