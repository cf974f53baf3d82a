"""The version of the installed distribution; looked up on first use, because the look-up takes 15 ms."""

from __future__ import annotations

from functools import cache


@cache
def shoal_version() -> str:
    """The version, as `shoal version` prints it and every answer of the admin API carries it."""
    from importlib.metadata import version

    return version("shoal")


def agent() -> str:
    """The name and version that we give to other programs, in HTTP and in libp2p's identify."""
    return f"shoal/{shoal_version()}"
