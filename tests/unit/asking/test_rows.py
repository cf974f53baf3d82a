"""Rows of log-probabilities on the wire: how much precision they lose, and which are no distribution."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.node.inference.remote.rows import EXACT, LEAST, STEPS, pack, row_bytes, unpack
from shoal.node.inference.scorer import LogProbs
from shoal.protocol.base.errors import RemoteError
from shoal.protocol.base.ids import PeerId

BOB = PeerId("bob")


def rows(count: int, vocab: int, spread: float, seed: int) -> LogProbs:
    logits = np.random.default_rng(seed).normal(0, spread, (count, vocab))
    shifted = logits - logits.max(axis=1, keepdims=True)
    found: LogProbs = (shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))).astype(np.float32)
    return found


@given(st.integers(0, 3), st.integers(1, EXACT), st.floats(0, 40), st.integers(0, 9))
def test_a_small_vocabulary_loses_nothing(count: int, vocab: int, spread: float, seed: int) -> None:
    sent = rows(count, vocab, spread, seed)
    data = pack(sent)
    assert len(data) == count * row_bytes(vocab)
    assert np.array_equal(unpack(data, count, vocab, BOB), sent)


@given(st.integers(1, 3), st.sampled_from([EXACT + 1, 5000, 50257]), st.floats(0, 40), st.integers(0, 9))
def test_a_large_one_loses_half_a_step_and_what_is_next_to_impossible(
    count: int, vocab: int, spread: float, seed: int
) -> None:
    sent = rows(count, vocab, spread, seed)
    data = pack(sent)
    assert len(data) == count * vocab * 2
    found = unpack(data, count, vocab, BOB)
    is_likely = sent >= LEAST
    assert np.abs(found - sent)[is_likely].max(initial=0) <= 0.5 / STEPS + 1e-5
    assert np.abs(np.exp(found) - np.exp(sent)).sum(axis=1).max() <= 0.001, "total variation"
    assert (found[~is_likely] == np.float32(LEAST)).all()


def test_what_is_certain_stays_certain() -> None:
    for vocab in (3, 5000):
        sent = np.full((1, vocab), -np.inf, np.float32)
        sent[0, 1] = 0
        found = unpack(pack(sent), 1, vocab, BOB)
        assert found[0, 1] == 0
        assert np.exp(found).sum() == 1


@pytest.mark.parametrize("vocab", [256, 5000])
@pytest.mark.parametrize("damage", [b"\0", b"\xff", b"\x10"])
def test_what_is_no_distribution_is_the_senders_fault(vocab: int, damage: bytes) -> None:
    with pytest.raises(RemoteError, match="sum to") as caught:
        unpack(damage * row_bytes(vocab), 1, vocab, BOB)
    assert caught.value.peer == BOB
    with pytest.raises(RemoteError, match="bytes for 2 rows"):
        unpack(pack(rows(1, vocab, 1, 0)), 2, vocab, BOB)
