"""The page's own files: plain HTML, CSS and JavaScript, served as they lie in the package.

They are the same for everybody and hold no secret; what they show, they ask for after the login.
"""

from __future__ import annotations

from pathlib import Path

from aiohttp import web

FOLDER = Path(__file__).parent.parent / "page"
REVALIDATE = {"Cache-Control": "no-cache"}  # a browser asks each time whether its copy is still ours


def table() -> list[web.AbstractRouteDef]:
    """The page at `/`, what it is made of under `/page/`."""
    return [web.get("/", _index), web.get("/page/{file:[A-Za-z0-9./-]+}", _file)]


async def _index(request: web.Request) -> web.StreamResponse:
    return web.FileResponse(FOLDER / "index.html", headers=REVALIDATE)


async def _file(request: web.Request) -> web.StreamResponse:
    path = (FOLDER / request.match_info["file"]).resolve()
    if not path.is_relative_to(FOLDER.resolve()) or not path.is_file():
        raise web.HTTPNotFound
    return web.FileResponse(path, headers=REVALIDATE)
