"""Mixtures: routers give distributions, equal experts give what one gives, and pictures follow from seeds."""

from __future__ import annotations

import pytest
import torch

from shoal.node.diffusion.mixture import Mixture, noise, sample_pictures
from shoal.node.diffusion.network import Router, Velocity, build
from shoal.node.manifest.model import FlowSpec, RouterSpec

FLOW = FlowSpec(name="flow", side=3, classes=4, width=16, layers=2, hidden=24)
ROUTER = RouterSpec(name="router", side=3, classes=4, width=16, layers=1, hidden=24, experts=4)


def velocity(seed: int) -> Velocity:
    """One that says something: a fresh one's head is zero."""
    model = build(FLOW, seed)
    assert isinstance(model, Velocity)
    torch.manual_seed(seed)
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    return model


def router() -> Router:
    model = build(ROUTER, 9)
    assert isinstance(model, Router)
    torch.manual_seed(9)
    torch.nn.init.normal_(model.head.weight)
    return model


def points(count: int = 30) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return torch.randn(count, 9), torch.rand(count), torch.arange(count) % 5


@pytest.mark.parametrize("top", [None, 1, 2, 4, 7])
def test_shares_sum_to_one_and_top_k_has_k(top: int | None) -> None:
    several = [velocity(each) for each in range(4)]
    full = Mixture(several, range(4), router())
    shares = Mixture(several, range(4), full.router, top).shares(*points())
    assert torch.allclose(shares.sum(-1), torch.ones(30))
    most = min(top or 4, 4)
    assert ((shares > 0).sum(-1) == most).all()
    among = torch.where(shares > 0, full.shares(*points()), 0)
    assert torch.allclose(shares, among / among.sum(-1, keepdim=True), atol=1e-6)


@pytest.mark.parametrize("top", [None, 1, 2])
def test_equal_experts_say_what_one_says(top: int | None) -> None:
    one = velocity(1)
    told = Mixture([one] * 4, range(4), router(), top).velocity(*points())
    with torch.inference_mode():
        assert torch.allclose(told, one(*points()), atol=1e-5)


def test_one_expert_needs_no_router() -> None:
    one = velocity(1)
    with torch.inference_mode():
        assert Mixture([one], [0], None).velocity(*points()).equal(one(*points()))


def test_a_mixture_is_the_sum_by_shares() -> None:
    several = [velocity(each) for each in range(4)]
    mixture = Mixture(several, range(4), router())
    with torch.inference_mode():
        each = torch.stack([expert(*points()) for expert in several], dim=1)
        wanted = (mixture.shares(*points())[..., None] * each).sum(1)
    assert torch.allclose(mixture.velocity(*points()), wanted, atol=1e-5)


def test_an_expert_that_is_absent_leaves_its_share_to_the_others() -> None:
    several = [velocity(each) for each in range(4)]
    whole, without = Mixture(several, range(4), router()), Mixture(several[1:], [1, 2, 3], router())
    rest = whole.shares(*points())[:, 1:]
    assert torch.allclose(without.shares(*points()), rest / rest.sum(-1, keepdim=True), atol=1e-6)


def test_guidance_leads_away_from_no_class() -> None:
    mixture = Mixture([velocity(1)], [0], None)
    x, t, _ = points()
    classes, none = torch.full((30,), 2), torch.full((30,), 4)
    free, led = mixture.velocity(x, t, none), mixture.velocity(x, t, classes)
    assert torch.allclose(mixture.guided(classes, 3.0)(x, t), free + 3 * (led - free), atol=1e-5)
    assert mixture.guided(classes, 1.0)(x, t).equal(led)


def test_a_picture_follows_from_its_seed_whatever_is_painted_with_it() -> None:
    mixture = Mixture([velocity(each) for each in range(4)], range(4), router(), 2)
    several = sample_pictures(mixture, [0, 1, 2], noise([(5, 0), (5, 1), (6, 0)], 9), steps=3)
    alone = sample_pictures(mixture, [1], noise([(5, 1)], 9), steps=3)
    assert several.shape == (3, 9)
    assert several.abs().max() <= 1
    assert torch.allclose(several[1:2], alone, atol=1e-5)
    assert not noise([(5, 0)], 9).equal(noise([(5, 1)], 9))
