"""Experts on pictures behind OpenAI's /v1/images/generations; and pictures as a file, without a server.

Routes about text say that no text can come of them. Pictures are PNG, dark on white, each pixel a square of so many.
"""

from __future__ import annotations

import base64
import io
import math
import secrets
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from aiohttp import web
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from torch import Tensor

from shoal.node.base.pools import ANSWERS
from shoal.node.diffusion.gallery import Gallery
from shoal.node.diffusion.mixture import GUIDANCE, STEPS, noise, paint
from shoal.node.diffusion.painter import AT_ONCE, Order, Painter, PaintLoad
from shoal.node.diffusion.requests import ImagesRequest, class_of
from shoal.node.inference.http.body import BodyReader
from shoal.node.inference.http.errors import CALLER, ApiError, BadRequest
from shoal.node.inference.http.metrics import Family, Metrics, metric_by_end
from shoal.node.inference.http.routes import ModelRoutes
from shoal.node.inference.http.server import ListenOptions, listen, rereading_on_signal, running_app, until_asked_to_end
from shoal.protocol.base.errors import LocalError

try:
    from PIL import Image
except ImportError as error:
    raise LocalError("pictures are written by Pillow: pip install 'shoal[digits]'") from error

Grey = npt.NDArray[np.uint8]
TEXT_PATHS = ("/v1/completions", "/v1/chat/completions")
SCALE = 8  # pixels of a file for each of a picture


def grey(picture: Tensor, scale: int) -> Grey:
    """A square picture (P,) from -1, which is paper, to 1, as bytes (side x scale, side x scale)."""
    side = round(len(picture) ** 0.5)
    pixels = ((1 - picture.view(side, side).clamp(-1, 1)) * 127.5).round().byte()
    large: Grey = pixels.repeat_interleave(scale, 0).repeat_interleave(scale, 1).numpy()
    return large


def encode(pixels: Grey) -> bytes:
    """As a file."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def grid(pictures: Sequence[Tensor], scale: int, columns: int) -> Grey:
    """Several in rows, with a white line between them; the last row is filled up with paper."""
    tiles = [np.pad(grey(each, scale), (0, scale), constant_values=255) for each in pictures]
    rest = -len(tiles) % columns
    tiles += [np.full_like(tiles[0], 255)] * rest
    rows = [np.concatenate(tiles[start : start + columns], axis=1) for start in range(0, len(tiles), columns)]
    return np.concatenate(rows)


def of_pictures(load: PaintLoad) -> Iterator[Family]:
    """The load of a painter."""
    yield GaugeMetricFamily("shoal_serve_slots", "Pictures that are painted at once, at most.", AT_ONCE)
    yield GaugeMetricFamily("shoal_serve_slots_busy", "Pictures that are being painted.", load.busy)
    yield GaugeMetricFamily("shoal_serve_waiting", "Sequences, or pictures, that wait.", load.waiting)
    yield metric_by_end("shoal_serve_pictures", "Pictures by how they ended.", load.finished, load.broken)
    yield CounterMetricFamily("shoal_serve_picture_steps", "Steps of the sampler, of each picture.", load.steps)
    yield CounterMetricFamily("shoal_serve_painting_seconds", "Seconds that these steps took.", load.seconds)
    yield CounterMetricFamily("shoal_serve_calls", "Calls, each of pictures painted together.", load.calls)


class ImageRoutes:
    """The routes over a gallery, which `painter` paints for."""

    def __init__(self, gallery: Gallery, painter: Painter) -> None:
        self._gallery, self._painter = gallery, painter
        self._bodies = BodyReader()
        self._models = ModelRoutes(gallery.name, gallery.created, self._about)

    def table(self) -> list[web.RouteDef]:
        """Which path is answered by which method."""
        return [
            *self._models.table(),
            web.post("/v1/images/generations", self._paint),
            *(web.post(path, self._no_text) for path in TEXT_PATHS),
        ]

    async def _no_text(self, request: web.Request) -> web.Response:
        raise ApiError(
            400, f"'{self._gallery.name}' paints pictures: ask it at /v1/images/generations", CALLER, "model"
        )

    async def _paint(self, request: web.Request) -> web.Response:
        asked = await self._bodies.read(request, ImagesRequest)
        if asked.model:
            self._models.check(asked.model)
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


@asynccontextmanager
async def serving(gallery: Gallery, where: ListenOptions) -> AsyncIterator[int]:
    """Serve while the context is open; gives the port."""
    listener = listen(where)
    painter = Painter(gallery, where.waiting)
    metrics = Metrics(lambda: of_pictures(painter.load()))
    async with running_app(listener, where, ImageRoutes(gallery, painter).table(), metrics, painter.stop) as port:
        yield port


async def serve(gallery: Gallery, where: ListenOptions) -> None:
    """Until asked to end; SIGHUP has the folder looked at again."""
    async with serving(gallery, where) as port, rereading_on_signal(gallery.name, gallery.look_again):
        await until_asked_to_end(f"{gallery.name}: {gallery.sentence}", where, port, changes=True)


def write(gallery: Gallery, prompt: str, count: int, seed: int, out: Path) -> None:
    """A grid of pictures as a PNG file; LocalError if the prompt names no class, or the file cannot be written."""
    panel = gallery.panel
    try:
        wanted = class_of(prompt, panel.spec.classes)
    except ValueError as error:
        raise LocalError(str(error)) from error
    start = noise([(seed, number) for number in range(count)], panel.spec.context).to(panel.mixture.device)
    pictures = paint(panel.mixture, [wanted] * count, start, steps=STEPS, guidance=GUIDANCE).cpu()
    try:
        out.write_bytes(encode(grid(list(pictures), SCALE, math.ceil(math.sqrt(count)))))
    except OSError as error:
        raise LocalError(f"cannot write {out}: {error.strerror}") from error
