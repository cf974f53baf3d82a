"""Folders of experts on pictures: what opens, what is refused and in which words, and which class a prompt names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from shoal.node.diffusion.mixture import noise, sample_pictures
from shoal.node.diffusion.picture_source import PictureSource
from shoal.node.diffusion.requests import class_of
from shoal.node.diffusion.server import write
from shoal.node.inference.ensemble.table import is_of_pictures
from shoal.node.inference.served import ServeOptions
from shoal.protocol.base.errors import LocalError
from tests.unit.serve.images.gallery_kit import FLOW, write_gallery, write_table

CHOICES = ServeOptions(device="cpu", threads=1)


def test_a_folder_opens_with_its_experts_at_the_routers_places(tmp_path: Path) -> None:
    folder = write_gallery(tmp_path / "g", (2, 0))
    assert is_of_pictures(folder)
    assert not is_of_pictures(tmp_path)
    gallery = PictureSource(folder, ServeOptions(device="cpu", threads=1, mix="top-1"))
    assert (gallery.name, gallery.panel.experts, gallery.mix) == ("digits", ("cluster-2", "cluster-0"), "top-1")
    assert (list(gallery.panel.mixture.places), gallery.panel.mixture.top) == ([2, 0], 1)
    pictures = sample_pictures(gallery.panel.mixture, [3, 4], noise([(0, 0), (0, 1)], 16), steps=2)
    assert pictures.shape == (2, 16)
    assert bool(torch.isfinite(pictures).all())


def test_one_expert_needs_no_router(tmp_path: Path) -> None:
    assert PictureSource(write_gallery(tmp_path, (1,), has_router=False), CHOICES).panel.mixture.router is None


@pytest.mark.parametrize(("mix", "why"), [("average", "full, top-1"), ("pcb", "full, top-1"), ("best", "unknown")])
def test_what_is_for_text_is_refused(tmp_path: Path, mix: str, why: str) -> None:
    with pytest.raises(LocalError, match=why):
        PictureSource(write_gallery(tmp_path), ServeOptions(device="cpu", mix=mix))
    with pytest.raises(LocalError, match="for experts on text"):
        PictureSource(tmp_path, ServeOptions(device="cpu", prior="text"))


def test_folders_that_cannot_paint_say_why(tmp_path: Path) -> None:
    with pytest.raises(LocalError, match="0 routers"):
        PictureSource(write_gallery(tmp_path / "a", has_router=False), CHOICES)
    with pytest.raises(LocalError, match="does not know"):
        PictureSource(write_gallery(tmp_path / "b", (0, 3)), CHOICES)
    larger = FLOW.model_copy(update={"side": 5})
    with pytest.raises(LocalError, match="several sizes"):
        PictureSource(write_gallery(tmp_path / "c", flow=larger), CHOICES)
    damaged = write_gallery(tmp_path / "d")
    content = bytearray((damaged / "cluster-1.safetensors").read_bytes())
    content[-1] ^= 1
    (damaged / "cluster-1.safetensors").write_bytes(content)
    with pytest.raises(LocalError, match="is not the expert cluster-1"):
        PictureSource(damaged, CHOICES)
    mixed = write_gallery(tmp_path / "e")
    rows = json.loads((mixed / "ensemble.json").read_text())["experts"]
    rows[1]["model"] = {"name": "llama"}
    write_table(mixed, rows)
    with pytest.raises(LocalError, match="on text and on pictures"):
        PictureSource(mixed, CHOICES)


@pytest.mark.parametrize(
    ("prompt", "wanted"), [("7", 7), ("a handwritten 3, please", 3), ("Nine", 9), ("draw zero", 0), ("a 5 (five)", 5)]
)
def test_a_prompt_names_its_class(prompt: str, wanted: int) -> None:
    assert class_of(prompt, 10) == wanted


@pytest.mark.parametrize(
    ("prompt", "why"), [("", "names none"), ("a cat", "names none"), ("3 or 4", "several"), ("12", "no class 12")]
)
def test_a_prompt_that_names_none_is_told_so(prompt: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        class_of(prompt, 10)


def test_a_number_too_long_to_be_read_names_no_class() -> None:
    with pytest.raises(ValueError, match="names none"):
        class_of("7" * 5000, 10)


def test_a_grid_is_written_and_follows_from_the_seed(tmp_path: Path) -> None:
    gallery = PictureSource(write_gallery(tmp_path / "g"), CHOICES)
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        write(gallery, "7", 5, seed, tmp_path / name)
    one, same, other = ((tmp_path / name).read_bytes() for name in "abc")
    assert one.startswith(b"\x89PNG")
    assert one == same
    assert one != other
    with pytest.raises(LocalError, match="names none"):
        write(gallery, "cat", 1, 0, tmp_path / "d")
    with pytest.raises(LocalError, match="cannot write"):
        write(gallery, "7", 1, 0, tmp_path / "missing" / "d")
