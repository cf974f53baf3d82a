"""How the benchmark judges sampled pictures: its classifier and its distance are right about real pictures."""

from __future__ import annotations

import pytest
import torch
from kit.picture_quality import accuracy, frechet_distance, quality, train_judge
from kit.picture_table import PictureEvaluation

from shoal.node.diffusion.pictures import digits


def test_real_pictures_that_samples_are_held_to_have_the_classes_of_those_held_out() -> None:
    gallery = PictureEvaluation(range(2))
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


def test_it_knows_real_digits_and_prefers_them() -> None:
    train, held, _ = digits()
    judge = train_judge(train)
    real, classes, trained = (torch.from_numpy(each) for each in (held.pixels, held.classes, train.pixels))
    assert accuracy(judge, real, classes) > 0.93
    torch.manual_seed(0)
    some = torch.randperm(len(train))[: len(real)]
    others = quality(judge, trained[some], torch.from_numpy(train.classes)[some], real, trained)
    noisy = quality(judge, (real + 0.7 * torch.randn_like(real)).clamp(-1, 1), classes, real, trained)
    same = quality(judge, real, classes, real, trained)
    one_kind = quality(judge, real[classes == 3], classes[classes == 3], real, trained)
    assert abs(same.frechet) < 0.01
    assert same.frechet < others.frechet < noisy.frechet < one_kind.frechet
    assert others.copied == 1
    assert same.copied < 0.06  # by definition one in twenty
    assert one_kind.score < 2 < same.score
    assert noisy.accuracy < same.accuracy


def test_the_distance_of_normal_distributions_is_known() -> None:
    """Of N(0, 1) and N(3, 4) in one dimension: 9 + (1 - 2)^2 = 10."""
    torch.manual_seed(4)
    one, other = torch.randn(200_000, 1), torch.randn(200_000, 1) * 2 + 3
    assert frechet_distance(one, other) == pytest.approx(10.0, abs=0.1)
    assert frechet_distance(one, one) == pytest.approx(0.0, abs=1e-9)


def test_the_distance_sees_how_features_go_together() -> None:
    torch.manual_seed(5)
    one = torch.randn(5000, 3)
    tied = torch.stack([one[:, 0], one[:, 0], one[:, 2]], dim=1)
    assert frechet_distance(one, tied) > 0.5
    assert frechet_distance(one, tied) == pytest.approx(frechet_distance(tied, one), rel=1e-9)
    with pytest.raises(ValueError, match="no spread"):
        frechet_distance(one[:1], one)
