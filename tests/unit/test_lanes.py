"""Batches are a pure function of (seed, lane, round, step)."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from shoal.node.training.data.lanes import ROSTER_LANES, lane_batch, lane_starts, newcomer_lane
from shoal.protocol.base.errors import LocalError
from shoal.protocol.base.ids import PeerId

TEXT = torch.arange(5000) % 251


def batch(seed: int = 0, lane: int = 0, round: int = 1, step: int = 0) -> Tensor:
    return lane_batch(TEXT.to(torch.uint8), seed, lane, round, step, batch=4, context=16)


def test_shape_and_type() -> None:
    assert batch().shape == (4, 17)
    assert batch().dtype == torch.int64


def test_rows_are_windows_of_the_text() -> None:
    starts = lane_starts(5000 - 16, 0, 0, 1, 0, 4)
    assert torch.equal(batch(), torch.stack([TEXT[start : start + 17] for start in starts.tolist()]))


def test_the_same_key_gives_the_same_batch_and_any_other_key_another() -> None:
    assert torch.equal(batch(), batch())
    keys = [dict(seed=1), dict(lane=1), dict(round=2), dict(step=1), dict(lane=newcomer_lane(PeerId("x")))]
    batches = [batch(), *(batch(**key) for key in keys)]
    assert not any(torch.equal(left, right) for left, right in itertools.combinations(batches, 2))


def test_has_these_very_windows() -> None:
    """Members of different versions must not read each other's lanes, so the draws never change."""
    assert lane_starts(1_000_000, 0, 3, 7, 19, 3).tolist() == [276708, 543694, 582787]


def test_members_of_a_round_overlap_no_more_than_chance_has_it() -> None:
    """The share of the text that two of 4 lanes have both read is the product of what each has read."""
    size, context = 1_000_000, 128
    seen = torch.zeros(4, size, dtype=torch.bool)
    for lane, round, step in itertools.product(range(4), range(1, 11), range(20)):
        starts = lane_starts(size - context, 0, lane, round, step, 8)
        seen[lane, (starts[:, None] + torch.arange(context)).flatten()] = True
    share = seen.sum(1) / size  # about 0.19
    for left, right in itertools.combinations(range(4), 2):
        both = (seen[left] & seen[right]).sum() / size
        assert both == pytest.approx((share[left] * share[right]).item(), rel=0.15)


def test_the_ends_of_the_text_are_reached() -> None:
    text = torch.arange(10, dtype=torch.uint8)
    firsts = {int(lane_batch(text, 0, 0, 1, step, 1, 8)[0, 0]) for step in range(64)}
    assert firsts == {0, 1}
    assert lane_batch(text, 0, 0, 1, 0, 2, 9).tolist() == [list(range(10))] * 2


def test_a_text_shorter_than_a_window_is_a_clear_error() -> None:
    with pytest.raises(LocalError, match="10 bytes"):
        lane_batch(torch.zeros(10, dtype=torch.uint8), 0, 0, 1, 0, 1, 10)


def test_newcomers_read_lanes_of_their_own_above_those_of_rosters() -> None:
    lanes = {newcomer_lane(PeerId(f"peer{i}")) for i in range(1000)}
    assert len(lanes) == 1000
    assert ROSTER_LANES <= min(lanes) <= max(lanes) < 2**63
