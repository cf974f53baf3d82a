"""/v1/models: the one model that is served, as OpenAI lists it, and what only we say of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aiohttp import web

from shoal.node.serve.faults import CALLER, Fault


class Listing:
    """The routes that tell what is served."""

    def __init__(self, name: str, created: int, about: Callable[[], dict[str, Any]]) -> None:
        """`created` is in seconds since 1970; `about` says how it stands now."""
        self._name, self._created, self._about = name, created, about

    def table(self) -> list[web.RouteDef]:
        """Which path is answered by which method."""
        return [web.get("/v1/models", self._all), web.get("/v1/models/{model:.+}", self._one)]

    def check(self, wanted: str) -> None:
        """Fault unless it is the model that is served."""
        if wanted != self._name:
            message = f"the model '{wanted[:100]}' does not exist here: there is '{self._name}'"
            raise Fault(404, message, CALLER, "model", "model_not_found")

    async def _all(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [self._listed()]})

    async def _one(self, request: web.Request) -> web.Response:
        self.check(request.match_info["model"].rstrip("/"))
        return web.json_response(self._listed())

    def _listed(self) -> dict[str, Any]:
        table = {"id": self._name, "object": "model", "created": self._created, "owned_by": "shoal"}
        return table | {"shoal": self._about()}
