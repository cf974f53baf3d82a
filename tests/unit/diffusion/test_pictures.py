"""Rows of pictures: the same for the same key, only pictures that exist, with normal noise."""

from __future__ import annotations

import builtins
from typing import Any

import numpy as np
import pytest
import torch

from shoal.node.diffusion.pictures import CLASSLESS, HEAD, LOOKS, Pictures, digits, unpack
from shoal.node.manifest.data import DataSpec
from shoal.node.manifest.manifest import parse_manifest
from shoal.node.training.data.corpus import load_corpus
from shoal.node.training.trainer.inner import InnerTrainer
from shoal.protocol.base.errors import LocalError

MANIFEST = """
name = "p"
[model]
name = "flow"
width = 16
hidden = 32
layers = 1
[data]
name = "digits"
[method]
inner_steps = 3
batch = 8
"""


def some(count: int = 10, pixels: int = 9) -> Pictures:
    generator = np.random.default_rng(0)
    drawn = generator.uniform(-1, 1, (count, pixels)).astype(np.float32)
    return Pictures(drawn, np.arange(count) % 3, np.arange(count) % 2, 3)


def test_a_batch_follows_from_its_key_and_from_all_of_it() -> None:
    pictures = some()
    key = {"seed": 7, "lane": 2, "round": 5, "step": 3}
    batch = pictures.batch(**key, batch=16)
    assert batch.equal(pictures.batch(**key, batch=16))
    assert batch.shape == (16, HEAD + 18)
    for name, value in key.items():
        assert not batch.equal(pictures.batch(**(key | {name: value + 1}), batch=16))
    assert batch[:8].equal(pictures.batch(**key, batch=8))


def test_rows_are_of_the_pictures_with_their_class_cluster_noise_and_time() -> None:
    pictures = some()
    rows = unpack(pictures.batch(1, 0, 1, 0, 4000))
    known = torch.from_numpy(pictures.pixels)
    which = torch.cdist(rows.x0, known).argmin(-1)
    assert rows.x0.equal(known[which])
    assert rows.clusters.equal(torch.from_numpy(pictures.clusters)[which])
    classless = rows.classes == 3
    assert rows.classes[~classless].equal(torch.from_numpy(pictures.classes)[which][~classless])
    assert float(classless.float().mean()) == pytest.approx(CLASSLESS, abs=0.02)
    assert np.bincount(which.numpy(), minlength=10).min() > 300
    assert (float(rows.t.min()), float(rows.t.max())) == pytest.approx((0, 1), abs=0.01)
    assert float(rows.noise.mean()) == pytest.approx(0, abs=0.02)
    assert float(rows.noise.std()) == pytest.approx(1, abs=0.02)
    apart = torch.corrcoef(rows.noise.T) - torch.eye(9)
    assert float(apart.abs().max()) < 0.08


def test_validation_looks_at_each_picture_at_times_side_by_side() -> None:
    pictures = some()
    rows = unpack(pictures.validation())
    assert len(rows.t) == 10 * LOOKS
    assert rows.t[:LOOKS].tolist() == pytest.approx([(each + 0.5) / LOOKS for each in range(LOOKS)])
    assert rows.classes.max() == 2
    assert pictures.validation().equal(pictures.validation())


def test_the_digits_are_split_by_content() -> None:
    train, held, name = digits()
    assert (len(train) + len(held), train.pixels.shape[1], train.count) == (1797, 64, 10)
    assert 0.15 < len(held) / 1797 < 0.25
    assert (train.pixels.min(), train.pixels.max()) == (-1, 1)
    assert not {row.tobytes() for row in train.pixels} & {row.tobytes() for row in held.pixels}
    assert name == digits()[2]


def test_a_worker_trains_on_them_as_on_text() -> None:
    manifest = parse_manifest(MANIFEST)
    corpus = load_corpus(manifest.data)
    one, other = InnerTrainer(manifest, corpus), InnerTrainer(manifest, corpus)
    done = one.train(1, [0])
    assert (done.steps, done.tokens) == (3, 3 * 8 * 64)
    other.train(1, [0])
    assert one.read().equal(other.read())
    other.train(1, [1])
    assert not one.read().equal(other.read())


def test_without_scikit_learn_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *more: Any) -> Any:
        if name.startswith("sklearn"):
            raise ImportError(name)
        return real(name, *more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(LocalError, match=r"shoal\[digits\]"):
        load_corpus(DataSpec(name="digits"))
