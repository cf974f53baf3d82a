"""A daemon's state with other methods than DiLoCo: fragments, AdamW on the agreed state, means for workers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from shoal.node.ipc.messages import Range
from shoal.node.ipc.shm import FloatArray
from shoal.node.manifest.manifest import Manifest, ModelSpec, RoundSpec
from shoal.node.manifest.method import MethodSpec
from shoal.node.training.methods.ddp import FIRST, SECOND, adamw_step
from shoal.node.training.methods.diloco import outer_step
from shoal.node.training.methods.method import MOMENTUM, PARAMETERS
from shoal.node.training.methods.registry import EPSILON
from shoal.node.training.methods.schedule import rate
from shoal.node.training.methods.streaming import Streaming
from shoal.node.training.state.outer import OuterState
from shoal.protocol.averaging.events import Committed
from shoal.protocol.averaging.shelf import Decision
from shoal.protocol.base.ids import NO_DIGEST, PeerId
from shoal.protocol.base.wire import Payload
from shoal.protocol.messages.averaging import Made
from shoal.protocol.messages.log import Result

MODEL = ModelSpec(vocab=64, dim=16, layers=3, heads=2, kv_heads=1, hidden=32, context=16)


def manifest(name: str, **settings: Any) -> Manifest:
    spec = MethodSpec(name=name, **settings)  # type: ignore[arg-type]
    codec = {"scatter": "fp32", "gather": "fp32"}
    return Manifest(name="a", model=MODEL, method=spec, rounds=RoundSpec(chunk_bytes=4096), codec=codec)  # type: ignore[arg-type]


def outer(name: str, **settings: Any) -> OuterState:
    return OuterState(manifest(name, **settings))


def size_of(state: OuterState, round: int) -> int:
    return state.bounds(round)[-1][1]


def random(seed: int, size: int) -> FloatArray:
    return np.random.default_rng(seed).standard_normal(size, dtype=np.float32)


def encoded(state: OuterState, vector: FloatArray) -> list[Payload]:
    """The mean of a round in which this was the only contribution."""
    round = state.committed.current.round + 1
    payloads = []
    for chunk in range(len(state.bounds(round))):
        total = state.reducer(round).open(chunk)
        total.add(1, state.encoder(vector, round)(chunk))
        payloads.append(total.finish())
    return payloads


def vectors(state: OuterState) -> dict[str, torch.Tensor]:
    return {name: vector.clone() for name, vector in state.committed.current.vectors.items()}


def test_a_round_of_streaming_touches_its_fragment_and_nothing_else() -> None:
    state = outer("streaming-diloco", strides=3, inner_steps=12)
    assert isinstance(state.method, Streaming)
    assert len(state.chunks) == len(state.timetable.parts) == 4
    assert sum(size_of(state, round) for round in range(1, 5)) == state.elements
    assert len(set(state.chunks)) > 1, "rounds of unlike sizes are what this is about"
    for round in range(1, 9):
        part = state.timetable.part(round)
        fragment = state.method.fragments[part]
        assert size_of(state, round) == fragment.size
        before, delta = vectors(state), random(round, fragment.size)
        state.apply(encoded(state, delta))
        theta, momentum = outer_step(
            fragment.take(before[PARAMETERS]),
            fragment.take(before[MOMENTUM]),
            torch.from_numpy(delta),
            lr=0.7,
            momentum_factor=0.9,
        )
        after = vectors(state)
        assert torch.equal(after[PARAMETERS], fragment.put(before[PARAMETERS], theta))
        assert torch.equal(after[MOMENTUM], fragment.put(before[MOMENTUM], momentum))


def test_a_fragments_mean_of_another_size_is_refused() -> None:
    state = outer("streaming-diloco", strides=3, inner_steps=12)
    before = state.root
    with pytest.raises(ValueError, match="zip"):
        state.apply(encoded(state, random(1, size_of(state, 1)))[:-1])
    assert state.root == before


def test_ddp_makes_a_step_of_adamw_on_the_agreed_state() -> None:
    state = outer("ddp", warmup_steps=3, weight_decay=0.1)
    assert tuple(vectors(state)) == (PARAMETERS, FIRST, SECOND)
    for round in range(1, 5):
        before, gradient = vectors(state), random(round, state.elements)
        state.apply(encoded(state, gradient))
        expected = adamw_step(
            before[PARAMETERS],
            before[FIRST],
            before[SECOND],
            torch.from_numpy(gradient),
            step=round,
            lr=rate(manifest("ddp", warmup_steps=3, weight_decay=0.1), round - 1, None),
            betas=(0.9, 0.95),
            eps=EPSILON,
            weight_decay=0.1,
            undecayed=state.committed.shape.layout.undecayed,
        )
        for name, value in zip((PARAMETERS, FIRST, SECOND), expected, strict=True):
            assert torch.equal(vectors(state)[name], value), name


def test_a_worker_is_shown_the_means_of_the_last_two_rounds_if_the_method_wants_them() -> None:
    rates = {"outer_lr": 0.7, "outer_momentum": 0.9}
    state, other = outer("diloco-eager", **rates), outer("diloco-delayed", **rates)
    idle = OuterState(manifest("diloco-eager", **rates), trains=False)
    means = {round: random(round, state.elements) for round in range(1, 5)}
    for round, mean in means.items():
        state.apply(encoded(state, mean))
        other.apply(encoded(other, mean))
        idle.apply(encoded(idle, mean))
        assert sorted(state.answers) == [each for each in (round - 1, round) if each]
        assert all(np.array_equal(state.answers[each], means[each]) for each in state.answers)
    assert not other.answers
    assert not idle.answers, "there is no worker to show them to"
    assert idle.root == state.root
    assert all(torch.equal(vectors(state)[name], vectors(other)[name]) for name in vectors(state))


def test_what_a_round_has_missed_is_told_in_few_words_however_many_chunks_there_are() -> None:
    """Chunks are many, and neighbours have one owner: a worker is told of ranges, not of chunks."""
    state = outer("sparseloco")
    chunks = len(state.bounds(1))
    assert chunks > 4
    edges = [state.bounds(1)[index] for index in (0, 2, 3, chunks - 1)]

    def missed(counted: list[bool]) -> tuple[Range, ...]:
        return state.outcome(committed(counted)).missed

    assert missed([True] * chunks) == ()
    assert missed([False] * chunks) == (Range(0, state.elements),)
    partly = [True, True, False, False, *[True] * (chunks - 5), False]
    assert missed(partly) == (Range(edges[1][0], edges[2][1]), Range(*edges[3]))
    assert state.outcome(committed(partly)).members == 2


ROSTER = (PeerId("anna"), PeerId("bert"), PeerId("carl"))


def committed(counted: list[bool]) -> Committed:
    """Round 1, by three members of whom one had nothing to add."""
    means = tuple(Made(NO_DIGEST, b"\x05", 0, ROSTER[0], 1, b"") for _ in counted)
    result = Result(0, 1, 0, NO_DIGEST, NO_DIGEST, b"\x05", (5, 7), ())
    return Committed(Decision(3, result, ROSTER, means, ()), tuple(counted))


@pytest.mark.parametrize("name", ["sparseloco", "streaming-diloco", "ddp"])
def test_a_state_is_handed_over_with_all_its_vectors(name: str) -> None:
    donor, joiner = outer(name), outer(name)
    for round in (1, 2, 3):
        donor.apply(encoded(donor, random(round, size_of(donor, round))))
    held = donor.committed.current
    chunks = [held.chunk(index) for index in range(len(held.shape.chunks))]
    assert joiner.committed.install(3, chunks, held.root).root == donor.root
    for state in (donor, joiner):
        state.apply(encoded(state, random(9, size_of(state, 4))))
    assert donor.root == joiner.root
