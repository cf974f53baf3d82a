"""The server of pictures, from its first to its last request; and pictures as a file, without a server."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from shoal.node.diffusion.painting import GUIDANCE, STEPS, noise, paint
from shoal.node.serve.app import Listening, answering, listen, looking_again, until_told
from shoal.node.serve.images.metrics import of_pictures
from shoal.node.serve.images.painter import Painter
from shoal.node.serve.images.png import encode, grid
from shoal.node.serve.images.prompt import class_of
from shoal.node.serve.images.routes import ImageRoutes
from shoal.node.serve.images.source import Gallery
from shoal.node.serve.metrics import Metrics
from shoal.protocol.errors import LocalError

SCALE = 8  # pixels of a file for each of a picture


@asynccontextmanager
async def serving(gallery: Gallery, where: Listening) -> AsyncIterator[int]:
    """Serve while the context is open; gives the port."""
    listener = listen(where)
    painter = Painter(gallery, where.waiting)
    metrics = Metrics(lambda: of_pictures(painter.load()))
    async with answering(listener, where, ImageRoutes(gallery, painter).table(), metrics, painter.stop) as port:
        yield port


async def serve(gallery: Gallery, where: Listening) -> None:
    """Until asked to end; SIGHUP has the folder looked at again."""
    async with serving(gallery, where) as port, looking_again(gallery.name, gallery.look_again):
        await until_told(f"{gallery.name}: {gallery.sentence}", where, port, changes=True)


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
