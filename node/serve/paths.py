"""The paths at which clients look for a route: after a base URL with /v1 or without, with a slash more or less."""

from __future__ import annotations

from collections.abc import Iterable

from aiohttp import web

BASE = "/v1"
OTHERS = ("/metrics",)  # routes that are not below it


def spellings(table: Iterable[web.RouteDef]) -> list[web.RouteDef]:
    """The routes, and those below `BASE` also as clients happen to write them."""
    return [web.RouteDef(each.method, path, each.handler, each.kwargs) for each in table for path in _paths(each.path)]


def usual(path: str) -> str:
    """A path of one of `spellings` as we write it."""
    bare = path.replace("//", "/").rstrip("/")
    return bare if bare.startswith((f"{BASE}/", *OTHERS)) else f"{BASE}{bare}"


def _paths(path: str) -> list[str]:
    if not path.startswith(f"{BASE}/"):
        return [path]
    rest = path.removeprefix(BASE)
    ends = ("",) if rest.endswith("}") else ("", "/")
    return [f"{begin}{rest}{end}" for begin in (BASE, f"{BASE}/", "") for end in ends]
