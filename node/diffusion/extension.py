"""What this package brings to training: its kinds of models, its data, and a worker that knows both."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from shoal.node.base.extensions import Extension
from shoal.node.diffusion.network import PictureKind
from shoal.node.diffusion.pictures import digits, samples
from shoal.node.manifest.data import DataSpec
from shoal.node.manifest.model import PICTURES
from shoal.node.training.data.corpus import Corpus

NAMES = (*PICTURES, "digits")  # of models and of data
PROGRAM = (sys.executable, "-P", "-m", "shoal.node.diffusion.worker")  # -P: no module comes from the current folder


def corpus(spec: DataSpec, paths: Sequence[Path]) -> Corpus:
    """The last of the paths is the partition's file, where there is one."""
    train, held, name = digits(spec.cluster, paths[-1] if paths else None)
    count, nothing = len(train) + len(held), torch.empty(0, dtype=torch.uint8)
    return Corpus(nothing, held.validation(), name, count, 0, batches=train)


EXTENSION = Extension(PictureKind, corpus, lambda: samples()[0], PROGRAM)
