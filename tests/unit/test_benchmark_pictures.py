"""benchmarks/kit/picture_table.py: what sampled digits are compared with is as they are. Nothing is sampled here."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from kit.picture_table import Gallery


def test_real_pictures_that_samples_are_held_to_have_the_classes_of_those_held_out() -> None:
    gallery = Gallery(range(2))
    held = torch.bincount(gallery.classes)
    for seed in range(2):
        some = gallery.like_held(seed)
        assert torch.equal(torch.bincount(gallery.trained_classes[some]), held)
        assert len(set(some.tolist())) == len(some) == len(gallery.real)
    assert not torch.equal(gallery.like_held(0).sort().values, gallery.like_held(1).sort().values)
    floor = gallery.floor()
    seen = torch.cdist(gallery.trained, gallery.real).min()
    assert seen > 0, "what is held out is not trained on"
    assert floor.figures()["frechet"][0] < 3
    assert floor.figures()["copied"] == (1.0, 0.0)
