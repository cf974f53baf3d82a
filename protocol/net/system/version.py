"""The version of the installed distribution; looked up when asked for, because the look-up takes 15 ms."""

from __future__ import annotations

from functools import cache


@cache
def shoal_version() -> str:
    """What `shoal version` prints and every answer of the admin API carries."""
    from importlib.metadata import version

    return version("shoal")


def agent() -> str:
    """What we call ourselves to other programs, as HTTP and libp2p's identify write it."""
    return f"shoal/{shoal_version()}"
