"""OpenAI's routes over experts on pictures; those about text say that no text can come of them."""

from __future__ import annotations

import base64
import secrets
import time
from typing import Any

from aiohttp import web
from torch import Tensor

from shoal.node.pools import ANSWERS
from shoal.node.serve.faults import CALLER, BadRequest, Fault
from shoal.node.serve.images.canvas import Order
from shoal.node.serve.images.painter import Painter
from shoal.node.serve.images.png import encode, grey
from shoal.node.serve.images.prompt import class_of
from shoal.node.serve.images.requests import ImagesAsked
from shoal.node.serve.images.source import Gallery
from shoal.node.serve.listing import Listing
from shoal.node.serve.routes import Bodies

TEXT = ("/v1/completions", "/v1/chat/completions")


class ImageRoutes:
    """The routes over a gallery, which `painter` paints for."""

    def __init__(self, gallery: Gallery, painter: Painter) -> None:
        self._gallery, self._painter = gallery, painter
        self._bodies = Bodies()
        self._listing = Listing(gallery.name, gallery.created, self._about)

    def table(self) -> list[web.RouteDef]:
        """Which path is answered by which method."""
        return [
            *self._listing.table(),
            web.post("/v1/images/generations", self._paint),
            *(web.post(path, self._no_text) for path in TEXT),
        ]

    async def _no_text(self, request: web.Request) -> web.Response:
        raise Fault(400, f"'{self._gallery.name}' paints pictures: ask it at /v1/images/generations", CALLER, "model")

    async def _paint(self, request: web.Request) -> web.Response:
        asked = await self._bodies.read(request, ImagesAsked)
        if asked.model:
            self._listing.check(asked.model)
        if asked.n > self._painter.most:
            raise BadRequest(f"'n': at most {self._painter.most} pictures may wait here", "n")
        spec = self._gallery.panel.spec
        try:
            wanted = class_of(asked.prompt, spec.classes)
        except ValueError as error:
            raise BadRequest(str(error), "prompt") from error
        scale = asked.scale(spec.side)
        seed = secrets.randbits(63) if asked.seed is None else asked.seed
        painted = await self._painter.paint(Order(wanted, asked.n, seed, asked.steps, asked.guidance))
        data = await ANSWERS.run(_encoded, painted.pictures, scale)
        size = f"{spec.side * scale}x{spec.side * scale}"
        about = {"seed": seed, "class": wanted, "mix": self._gallery.mix, "version": painted.version}
        answer = {"created": int(time.time()), "data": data, "size": size, "output_format": "png", "shoal": about}
        return web.json_response(answer)

    def _about(self) -> dict[str, Any]:
        gallery, panel, load = self._gallery, self._gallery.panel, self._painter.load()
        return {
            "source": gallery.sentence,
            "version": panel.version,
            "kind": "pictures",
            "mix": gallery.mix,
            "classes": panel.spec.classes,
            "side": panel.spec.side,
            "experts": list(panel.experts),
            "busy": load.busy,
            "waiting": load.waiting,
            "painted": load.finished,
        }


def _encoded(pictures: Tensor, scale: int) -> list[dict[str, str]]:
    """Of pictures (n, P)."""
    return [{"b64_json": base64.b64encode(encode(grey(each, scale))).decode()} for each in pictures]
