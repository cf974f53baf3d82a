"""Pictures as PNG: dark on white, each pixel a square of so many."""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from PIL import Image
from torch import Tensor

Grey = npt.NDArray[np.uint8]


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
