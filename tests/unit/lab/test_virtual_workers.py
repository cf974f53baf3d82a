"""Workers that train together as one matrix do what each would do alone."""

from __future__ import annotations

import torch

from shoal.node.training.data.lanes import lane_batch
from shoal.node.training.models.layout import Layout
from shoal.node.training.models.registry import build
from shoal.node.training.trainer.optimizers import adamw, set_rate
from tests.unit.lab.lab_kit import TEXT, TINY, crowd_of


def trained_alone(lane: int, steps: int, rates: list[float]) -> tuple[torch.Tensor, list[float]]:
    model = build(TINY)
    optimizer, losses = adamw(list(model.parameters()), TINY.method, torch.device("cpu")), []
    for step in range(1, steps + 1):
        tokens = lane_batch(TEXT, TINY.seed, lane, 0, step, TINY.method.batch, TINY.model.context)
        set_rate(optimizer, rates[step - 1])
        loss = model.loss(tokens)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), TINY.method.clip)
        optimizer.step()
        losses.append(loss.item())
    return Layout.of(model).read(model), losses


def test_a_crowd_trains_as_each_worker_does_alone() -> None:
    crowd, steps = crowd_of(3, steps=6), 6
    losses = torch.stack([crowd.step(step) for step in range(1, steps + 1)])
    rates = [crowd.rate(step) for step in range(1, steps + 1)]
    for lane in range(3):
        weights, alone = trained_alone(lane, steps, rates)
        assert torch.allclose(crowd.weights[lane], weights, rtol=0, atol=1e-5)
        assert torch.allclose(losses[:, lane], torch.tensor(alone), rtol=0, atol=1e-5)
    assert not torch.allclose(crowd.weights[0], crowd.weights[1], rtol=0, atol=1e-3)


def test_the_rate_rises_stays_and_falls_to_the_end_of_the_run() -> None:
    crowd = crowd_of(1, steps=10)
    shares = [crowd.rate(step) / TINY.method.inner_lr for step in range(1, 11)]
    assert [round(share, 6) for share in shares] == [0.5, *[1.0] * 7, round(2 / 3, 6), round(1 / 3, 6)]


def test_a_gradient_is_that_of_the_loss_and_changes_nothing() -> None:
    crowd = crowd_of(2)
    before = crowd.weights.clone()
    gradients, losses = crowd.gradients(1)
    assert torch.equal(crowd.weights, before)
    move = 1e-3 * gradients / gradients.norm(dim=1, keepdim=True)
    crowd.weights.sub_(move)
    _, after = crowd.gradients(1)
    assert torch.allclose(losses - after, (move * gradients).sum(1), rtol=0.05, atol=0)
