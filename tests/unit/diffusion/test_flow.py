"""Flow matching: golden numbers, experts that together predict what one would, and paths that end at the data."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from shoal.node.diffusion.flow import between, sample, top_shares, velocity
from tests.unit.diffusion.exact import exact_shares, exact_velocity, mixed

DATA = torch.tensor([[-1.0], [1.0], [3.0]], dtype=torch.float64)
LABELS = torch.tensor([0, 0, 1])


def test_the_golden_numbers_of_two_clusters() -> None:
    x = torch.tensor([[0.7]], dtype=torch.float64)
    shares = exact_shares(DATA, LABELS, 2, x, 0.4)
    assert shares[0].tolist() == pytest.approx([0.977140, 0.022860], abs=5e-7)
    apart = torch.stack([exact_velocity(DATA[each == LABELS], x, 0.4) for each in (0, 1)], dim=1)
    assert apart[0, :, 0].tolist() == pytest.approx([-0.723899, -5.75], abs=5e-7)
    assert mixed(shares, apart).item() == pytest.approx(-0.838797, abs=5e-7)
    assert mixed(shares, apart).item() == pytest.approx(exact_velocity(DATA, x, 0.4).item(), abs=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_experts_apart_say_together_what_one_says_of_all(seed: int) -> None:
    print(f"seed {seed}")
    torch.manual_seed(seed)
    data, labels = torch.randn(50, 6, dtype=torch.float64), torch.arange(50) % 4
    x = torch.randn(20, 6, dtype=torch.float64)
    for t in (0.05, 0.5, 1.0):
        apart = torch.stack([exact_velocity(data[labels == each], x, t) for each in range(4)], dim=1)
        together = mixed(exact_shares(data, labels, 4, x, t), apart)
        assert torch.allclose(together, exact_velocity(data, x, t), rtol=0, atol=1e-12 / t**2)


def test_one_cluster_is_ordinary_flow_matching() -> None:
    x = torch.randn(5, 1, dtype=torch.float64)
    shares = exact_shares(DATA, torch.zeros(3, dtype=torch.long), 1, x, 0.3)
    assert torch.allclose(shares, torch.ones(5, 1, dtype=torch.float64))


def test_what_is_told_leads_from_the_point_to_both_ends() -> None:
    torch.manual_seed(1)
    x0, noise, t = torch.randn(7, 3), torch.randn(7, 3), torch.rand(7)
    x, u = between(x0, noise, t), velocity(x0, noise)
    assert torch.allclose(x - u * t[:, None], x0, atol=1e-6)
    assert torch.allclose(x + u * (1 - t)[:, None], noise, atol=1e-6)


def test_a_squared_error_has_the_exact_velocity_as_its_mean() -> None:
    """The mean of targets of many pairs whose x_t comes near a point is what `exact` says there."""
    torch.manual_seed(2)
    t = 0.6
    x0 = DATA[torch.randint(3, (400_000,))]
    noise = torch.randn(400_000, 1, dtype=torch.float64)
    x = between(x0, noise, torch.full((400_000,), t, dtype=torch.float64))
    near = (x[:, 0] - 0.5).abs() < 0.02
    seen = velocity(x0, noise)[near].mean().item()
    assert seen == pytest.approx(exact_velocity(DATA, torch.tensor([[0.5]], dtype=torch.float64), t).item(), abs=0.05)


def test_shares_are_kept_by_the_greatest() -> None:
    shares = torch.tensor([[0.5, 0.3, 0.2]])
    assert top_shares(shares, 2)[0].tolist() == pytest.approx([0.625, 0.375, 0])
    assert torch.equal(top_shares(shares, 3), shares)
    with pytest.raises(ValueError, match="top 4 of 3"):
        top_shares(shares, 4)


def test_sampling_ends_at_the_data() -> None:
    torch.manual_seed(3)

    def exact(x: Tensor, t: Tensor) -> Tensor:
        return exact_velocity(DATA.float(), x, float(t[0]))

    ends = sample(exact, torch.randn(300, 1), steps=40)
    nearest = (ends - DATA.float().T).abs().min(1)
    assert nearest.values.max() < 1e-3
    shares = torch.bincount(nearest.indices, minlength=3) / 300
    assert shares.tolist() == pytest.approx([1 / 3] * 3, abs=0.1)


def test_twice_the_steps_are_more_exact_by_the_square() -> None:
    """A velocity that is linear in x has a known end: x' = x to the time 0 shrinks by e."""
    start = torch.ones(1, 1, dtype=torch.float64)
    errors = [abs(sample(lambda x, t: x * t[:, None].double(), start, n).item() - 2.718281828**-0.5) for n in (8, 16)]
    assert 3 < errors[0] / errors[1] < 5


def test_times_are_on_the_device_of_what_is_sampled() -> None:
    """The device without numbers stands for an accelerator."""
    asked = list[torch.device]()

    def velocity(x: Tensor, t: Tensor) -> Tensor:
        asked.append(t.device)
        return x * t[:, None]

    assert sample(velocity, torch.ones(2, 3, device="meta"), 2).device.type == "meta"
    assert [each.type for each in asked] == ["meta"] * 3


def test_no_steps_lead_nowhere() -> None:
    with pytest.raises(ValueError, match="lead nowhere"):
        sample(lambda x, t: x, torch.ones(1, 1), 0)
