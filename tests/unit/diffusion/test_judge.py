"""The judge of pictures: right about real ones it has not seen, and able to tell good samples from bad ones."""

from __future__ import annotations

import torch

from shoal.node.diffusion.digits import digits
from shoal.node.diffusion.judge import accuracy, quality, train_judge


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
