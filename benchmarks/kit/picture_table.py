"""Evaluates sampled digits: one line for each model, over several seeds of the noise."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageOps
from torch import Tensor

from kit.picture_quality import Quality, accuracy, quality, train_judge
from shoal.node.diffusion.flow import between, velocity
from shoal.node.diffusion.mixture import Mixture, noise, sample_pictures
from shoal.node.diffusion.pictures import CLASSES, digits, unpack

FIGURES = ("frechet", "accuracy", "score", "copied")
COLUMNS = 10  # of a grid
SCALE, MARGIN = 3, 20  # of save_grids: the enlargement, and the margin around a grid
NEAREST = Image.Resampling.NEAREST


@dataclass(frozen=True, slots=True)
class Line:
    """The results of one model."""

    name: str
    asked: int  # parameters that are evaluated for a picture in each step, with the router's
    loss: float | None  # of the velocity, on held-out pictures
    qualities: tuple[Quality, ...]  # one per seed

    def figures(self) -> dict[str, tuple[float, float]]:
        """Mean and standard deviation over the seeds."""
        found: dict[str, tuple[float, float]] = {}
        for name in FIGURES:
            values = [float(getattr(each, name)) for each in self.qualities]
            found[name] = statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0
        return found


class PictureEvaluation:
    """Compares models with real pictures, by a classifier."""

    def __init__(self, seeds: Sequence[int]) -> None:
        train, held, _ = digits()
        self._rows = held.validation()
        self.real, self.trained = torch.from_numpy(held.pixels), torch.from_numpy(train.pixels)
        self.classes, self.trained_classes = torch.from_numpy(held.classes), torch.from_numpy(train.classes)
        self._seeds, self._judge = seeds, train_judge(train)
        self.judged = accuracy(self._judge, self.real, self.classes)

    def floor(self) -> Line:
        """The line of real training pictures, as many of each class as are sampled: a bound for models."""
        several = [self.like_held(seed) for seed in self._seeds]
        found = tuple(self._quality(self.trained[some], self.trained_classes[some]) for some in several)
        return Line("real, trained on", 0, None, found)

    def like_held(self, seed: int) -> Tensor:
        """Indices of training pictures, drawn so that classes are as frequent as among the held-out ones.

        Samples have the same classes; otherwise the distance would also measure different class frequencies.
        """
        drawn = torch.randperm(len(self.trained), generator=torch.Generator().manual_seed(seed))
        wanted = torch.bincount(self.classes, minlength=CLASSES).tolist()
        of_class = (drawn[self.trained_classes[drawn] == each] for each in range(CLASSES))
        return torch.cat([some[:often] for some, often in zip(of_class, wanted, strict=True)])

    def line(self, name: str, mixture: Mixture) -> Line:
        """The line of a model: for each seed as many samples as there are held-out pictures, of their classes."""
        asked = self.classes.tolist()
        starts = ([(seed, each) for each in range(len(asked))] for seed in self._seeds)
        samples = (sample_pictures(mixture, asked, noise(each, self.real.shape[1])) for each in starts)
        found = tuple(self._quality(each, self.classes) for each in samples)
        return Line(name, _asked(mixture), self._loss(mixture), found)

    def grid(self, mixture: Mixture) -> Tensor:
        """Samples (100, P), ten of each class in a row."""
        wanted = [each // COLUMNS for each in range(10 * COLUMNS)]
        return sample_pictures(mixture, wanted, noise([(0, each) for each in range(len(wanted))], self.real.shape[1]))

    def own(self, mixture: Mixture) -> Tensor:
        """Samples without a class, ten of each expert alone in a row."""
        none = [mixture.none] * COLUMNS
        start = noise([(0, each) for each in range(COLUMNS)], self.real.shape[1])
        return torch.cat([sample_pictures(Mixture([each], [0], None), none, start) for each in mixture.experts])

    def real_grid(self) -> Tensor:
        """Held-out pictures, ten of each class in a row."""
        return torch.cat([self.real[self.classes == each][:COLUMNS] for each in range(10)])

    def _quality(self, pictures: Tensor, classes: Tensor) -> Quality:
        return quality(self._judge, pictures, classes, self.real, self.trained)

    def _loss(self, mixture: Mixture) -> float:
        rows = unpack(self._rows)
        told = mixture.velocity(between(rows.x0, rows.noise, rows.t), rows.t, rows.classes)
        return float((told - velocity(rows.x0, rows.noise)).square().mean())


def _asked(mixture: Mixture) -> int:
    size = sum(weight.numel() for weight in mixture.experts[0].parameters())
    router = 0 if mixture.router is None else sum(weight.numel() for weight in mixture.router.parameters())
    return size * min(mixture.top or len(mixture.experts), len(mixture.experts)) + router


def markdown(lines: Sequence[Line]) -> str:
    """The table."""
    head = ["", "parameters asked", "held-out loss", "Fréchet distance", "taken for its class", "score", "copied"]
    rows = [head, ["---", *["---:"] * 6]]
    for line in lines:
        cells = line.figures()
        (far, around), right, (score, _), (copied, _) = (cells[name] for name in FIGURES)
        asked = f"{line.asked:,}" if line.asked else "–"
        loss = "–" if line.loss is None else f"{line.loss:.4f}"
        rows.append(
            [line.name, asked, loss, f"{far:.2f} ± {around:.2f}", f"{right[0]:.1%}", f"{score:.2f}", f"{copied:.1%}"]
        )
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def save_grids(grids: dict[str, Tensor], path: Path) -> None:
    """Writes all grids in one picture, in two rows, each below its name."""
    images = {name: ImageOps.scale(Image.fromarray(tiled(each)), SCALE, NEAREST) for name, each in grids.items()}
    width = max(each.width for each in images.values()) + MARGIN
    height = max(each.height for each in images.values()) + 2 * MARGIN
    columns = -(-len(images) // 2)
    sheet = Image.new("L", (columns * width + MARGIN, 2 * height), 255)
    for number, (name, image) in enumerate(images.items()):
        x, y = MARGIN + number % columns * width, number // columns * height
        ImageDraw.Draw(sheet).text((x, y + 12), name, fill=0)
        sheet.paste(image, (x, y + 2 * MARGIN - 8))
    sheet.save(path)


def tiled(pictures: Tensor) -> np.ndarray[tuple[int, int], np.dtype[np.uint8]]:
    """Square pictures (n, P) side by side in rows of COLUMNS, dark on white, with a white line between them."""
    side = round(pictures.shape[1] ** 0.5)
    rows = len(pictures) // COLUMNS
    framed = torch.full((rows * COLUMNS, side + 1, side + 1), -1.0)
    framed[:, :side, :side] = pictures[: rows * COLUMNS].view(-1, side, side)
    tiles = framed.view(rows, COLUMNS, side + 1, side + 1).permute(0, 2, 1, 3).reshape(rows * (side + 1), -1)
    flat: np.ndarray[tuple[int, int], np.dtype[np.uint8]] = ((1 - tiles.clamp(-1, 1)) * 127.5).round().byte().numpy()
    return flat
