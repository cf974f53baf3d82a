"""Serves experts on pictures by OpenAI's /v1/images/generations; and writes pictures to a file, without a server.

Routes for text refuse with a hint. Pictures are PNG, dark on white, enlarged by a whole factor.
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

from shoal.node.base.extra import install_command
from shoal.node.base.pools import ANSWERS
from shoal.node.diffusion.engine import AT_ONCE, PictureEngine, PictureLoad, SamplingRequest
from shoal.node.diffusion.mixture import GUIDANCE, STEPS, noise, sample_pictures
from shoal.node.diffusion.picture_source import PictureSource
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
    raise LocalError(
        f"pictures are written by Pillow: install it with {install_command('digits')}", code="package-missing"
    ) from error

Grey = npt.NDArray[np.uint8]
TEXT_PATHS = ("/v1/completions", "/v1/chat/completions")
SCALE = 8  # the factor by which pictures in a file are enlarged


def grey(picture: Tensor, scale: int) -> Grey:
    """A square picture (P,) from -1 (white) to 1 (black), as bytes (side x scale, side x scale)."""
    side = round(len(picture) ** 0.5)
    pixels = ((1 - picture.view(side, side).clamp(-1, 1)) * 127.5).round().byte()
    large: Grey = pixels.repeat_interleave(scale, 0).repeat_interleave(scale, 1).numpy()
    return large


def encode(pixels: Grey) -> bytes:
    """The content of a PNG file."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def grid(pictures: Sequence[Tensor], scale: int, columns: int) -> Grey:
    """Pictures in rows, with a white line between them; the last row is filled up with white."""
    tiles = [np.pad(grey(each, scale), (0, scale), constant_values=255) for each in pictures]
    rest = -len(tiles) % columns
    tiles += [np.full_like(tiles[0], 255)] * rest
    rows = [np.concatenate(tiles[start : start + columns], axis=1) for start in range(0, len(tiles), columns)]
    return np.concatenate(rows)


def load_metrics(load: PictureLoad) -> Iterator[Family]:
    """The load of an engine, for /metrics."""
    yield GaugeMetricFamily("shoal_serve_slots", "Pictures that are painted at once, at most.", AT_ONCE)
    yield GaugeMetricFamily("shoal_serve_slots_busy", "Pictures that are being painted.", load.busy)
    yield GaugeMetricFamily("shoal_serve_waiting", "Sequences, or pictures, that wait.", load.waiting)
    yield metric_by_end("shoal_serve_pictures", "Pictures by how they ended.", load.finished, load.broken)
    yield CounterMetricFamily("shoal_serve_picture_steps", "Steps of the sampler, of each picture.", load.steps)
    yield CounterMetricFamily("shoal_serve_painting_seconds", "Seconds that these steps took.", load.seconds)
    yield CounterMetricFamily("shoal_serve_calls", "Calls, each of pictures painted together.", load.calls)


class ImageRoutes:
    """The routes for a source of pictures, which `engine` generates."""

    def __init__(self, source: PictureSource, engine: PictureEngine) -> None:
        self._source, self._engine = source, engine
        self._bodies = BodyReader()
        self._listing = ModelRoutes(source.name, source.created, self._about)

    def table(self) -> list[web.RouteDef]:
        """The handlers by path."""
        return [
            *self._listing.table(),
            web.post("/v1/images/generations", self._generate),
            *(web.post(path, self._no_text) for path in TEXT_PATHS),
        ]

    async def _no_text(self, request: web.Request) -> web.Response:
        raise ApiError(400, f"'{self._source.name}' paints pictures: ask it at /v1/images/generations", CALLER, "model")

    async def _generate(self, request: web.Request) -> web.Response:
        asked = await self._bodies.read(request, ImagesRequest)
        if asked.model:
            self._listing.check(asked.model)
        if asked.n > self._engine.most:
            raise BadRequest(f"'n': at most {self._engine.most} pictures may wait here", "n")
        spec = self._source.panel.spec
        try:
            wanted = class_of(asked.prompt, spec.classes)
        except ValueError as error:
            raise BadRequest(str(error), "prompt") from error
        scale = asked.scale(spec.side)
        seed = secrets.randbits(63) if asked.seed is None else asked.seed
        generated = await self._engine.generate(SamplingRequest(wanted, asked.n, seed, asked.steps, asked.guidance))
        data = await ANSWERS.run(_encoded, generated.pictures, scale)
        size = f"{spec.side * scale}x{spec.side * scale}"
        about = {"seed": seed, "class": wanted, "mix": self._source.mix, "version": generated.version}
        answer = {"created": int(time.time()), "data": data, "size": size, "output_format": "png", "shoal": about}
        return web.json_response(answer)

    def _about(self) -> dict[str, Any]:
        source, panel, load = self._source, self._source.panel, self._engine.load()
        return {
            "source": source.sentence,
            "version": panel.version,
            "kind": "pictures",
            "mix": source.mix,
            "classes": panel.spec.classes,
            "side": panel.spec.side,
            "experts": list(panel.experts),
            "busy": load.busy,
            "waiting": load.waiting,
            "painted": load.finished,
        }


def _encoded(pictures: Tensor, scale: int) -> list[dict[str, str]]:
    """The `data` of an answer with pictures (n, P)."""
    return [{"b64_json": base64.b64encode(encode(grey(each, scale))).decode()} for each in pictures]


@asynccontextmanager
async def serving(source: PictureSource, where: ListenOptions) -> AsyncIterator[int]:
    """Serves while the context is open; yields the port."""
    listener = listen(where)
    engine = PictureEngine(source, where.waiting)
    metrics = Metrics(lambda: load_metrics(engine.load()))
    async with running_app(listener, where, ImageRoutes(source, engine).table(), metrics, engine.stop) as port:
        yield port


async def serve(source: PictureSource, where: ListenOptions) -> None:
    """Serves until asked to end; SIGHUP makes it read the folder again."""
    async with serving(source, where) as port, rereading_on_signal(source.name, source.look_again):
        await until_asked_to_end(f"{source.name}: {source.sentence}", where, port, changes=True)


def write(source: PictureSource, prompt: str, count: int, seed: int, out: Path) -> None:
    """Writes a grid of pictures as a PNG file; LocalError if the prompt names no class, or writing fails."""
    panel = source.panel
    try:
        wanted = class_of(prompt, panel.spec.classes)
    except ValueError as error:
        raise LocalError(str(error), code="prompt-wrong") from error
    start = noise([(seed, number) for number in range(count)], panel.spec.context).to(panel.mixture.device)
    pictures = sample_pictures(panel.mixture, [wanted] * count, start, steps=STEPS, guidance=GUIDANCE).cpu()
    try:
        out.write_bytes(encode(grid(list(pictures), SCALE, math.ceil(math.sqrt(count)))))
    except OSError as error:
        raise LocalError(f"cannot write {out}: {error.strerror}", code="unwritable") from error
