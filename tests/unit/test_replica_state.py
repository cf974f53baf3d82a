"""Two nodes apply what they have exchanged, chunk by chunk, and rounds that lapse."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from shoal.node.manifest.manifest import CodecSpec, Manifest, ModelSpec, RoundSpec
from shoal.node.manifest.method import MethodSpec
from shoal.node.training.methods.method import MOMENTUM, PARAMETERS, Answer
from shoal.node.training.state.outer import StateStore
from shoal.node.training.state.replica_state import LARGEST, ReplicaState
from shoal.protocol.base.errors import PayloadError
from shoal.protocol.base.ids import content_hash
from shoal.protocol.base.wire import Payload

CODECS = [("fp32", "fp32"), ("int8", "fp16"), ("topk", "bf16")]


def manifest(name: str, scatter: str = "fp32", gather: str = "fp32", seed: int = 0) -> Manifest:
    return Manifest(
        name="tiny",
        seed=seed,
        model=ModelSpec(dim=16, layers=1, heads=2, kv_heads=1, hidden=32, context=16),
        method=MethodSpec(name=name),  # type: ignore[arg-type]
        rounds=RoundSpec(chunk_bytes=4096),
        codec=CodecSpec(scatter=scatter, gather=gather),  # type: ignore[arg-type]
    )


def drawn(state: ReplicaState, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(state.elements, dtype=np.float32)


def all_of(state: ReplicaState, vector: np.ndarray) -> list[Payload]:
    encode = state.encoder(vector, 1)
    return [bytes(encode(chunk)) for chunk in range(len(state.exchange))]


def exchange(one: ReplicaState, other: ReplicaState, round: int, first: np.ndarray, second: np.ndarray) -> None:
    sent = all_of(one, first), all_of(other, second)
    encoders = one.encoder(first, round), other.encoder(second, round)
    for payload in sent[0]:
        assert payload
    one.exchanged(round, encoders[0], sent[1], 0)
    other.exchanged(round, encoders[1], sent[0], 1)


@pytest.mark.parametrize(("scatter", "gather"), CODECS)
def test_a_pair_of_noloco_is_pulled_as_the_rule_says(scatter: str, gather: str) -> None:
    one, other = (ReplicaState(manifest("noloco", scatter, gather, seed)) for seed in (0, 1))
    assert len(one.exchange) >= 4
    for round in (1, 2):
        first, second = drawn(one, round), drawn(one, 10 + round)
        before = [{k: v.clone() for k, v in each.committed.current.vectors.items()} for each in (one, other)]
        value = torch.stack([coded(one, before[0], first), coded(other, before[1], second)])
        exchange(one, other, round, first, second)
        for place, (state, held) in enumerate(zip((one, other), before, strict=True)):
            made = state.method.apply(0, held, Answer(value, 2, place))
            assert state.committed.current.round == round
            for vector in (PARAMETERS, MOMENTUM):
                assert torch.equal(state.committed.current.vectors[vector], made[vector])
    assert one.root != other.root


def coded(state: ReplicaState, held: dict[str, torch.Tensor], vector: np.ndarray) -> torch.Tensor:
    """Delta and phi, (2, d), as the codecs make them of whole vectors of one chunk each."""
    encode = state.exchange.encoder(held, torch.from_numpy(vector))
    pieces = [state.exchange._decoded(index, encode(index)) for index in range(len(state.exchange))]
    half = len(pieces) // 2
    return torch.stack((torch.cat(pieces[half:]), torch.cat(pieces[:half])))


def test_a_pair_of_gossip_comes_to_the_same_bits() -> None:
    one, other = (ReplicaState(manifest("gossip")) for _ in range(2))
    first, second = drawn(one, 1), drawn(one, 2)
    exchange(one, other, 1, first, second)
    assert one.root == other.root
    assert torch.equal(one.committed.current.vectors[PARAMETERS], torch.from_numpy(first * 0.5 + second * 0.5))


def test_who_has_trained_nothing_changes_only_by_the_partner() -> None:
    still = ReplicaState(manifest("noloco"))
    assert not still.untrained().any()
    gossip = ReplicaState(manifest("gossip"))
    assert np.array_equal(gossip.untrained(), gossip.committed.current.vectors[PARAMETERS].numpy())


def test_a_round_without_an_answer_leaves_the_replica_and_its_root() -> None:
    one, other = (ReplicaState(manifest("noloco")) for _ in range(2))
    exchange(one, other, 1, drawn(one, 1), drawn(one, 2))
    root, bytes_of = one.root, bytes(one.committed.current.chunk(0))
    lease = one.committed.lease()
    one.passed(3)
    other.passed(3)
    assert (one.committed.current.round, one.root) == (3, root)
    for round in (4, 5, 6):  # whose versions need other buffers than the one that is leased
        exchange(one, other, round, drawn(one, round), drawn(one, 20 + round))
        assert bytes(lease.snapshot.chunk(0)) == bytes_of
    assert one.committed.current.round == 6
    lease.release()


def test_passed_rounds_are_counted_before_an_exchange() -> None:
    one, other = (ReplicaState(manifest("gossip")) for _ in range(2))
    exchange(one, other, 5, drawn(one, 1), drawn(one, 2))
    assert one.committed.current.round == 5
    one.passed(4)
    assert one.committed.current.round == 5


def test_chunks_that_cannot_be_used_are_refused() -> None:
    state = ReplicaState(manifest("noloco", "int8"))
    good = all_of(state, drawn(state, 1))
    for index, payload in enumerate(good):
        state.exchange.check(index, payload)
        with pytest.raises(PayloadError):
            state.exchange.check(index, bytes(payload)[:-1])
    size = len(good[0])
    for value in (np.nan, np.inf, 2 * LARGEST):
        with pytest.raises(PayloadError):
            state.exchange.check(0, np.full(size // 4, value, np.float32).tobytes())


def test_chunks_of_a_replica_that_cannot_be_used_are_refused() -> None:
    state = ReplicaState(manifest("noloco"))
    current = state.committed.current
    good = [bytes(current.chunk(index)) for index in range(len(current.shape.chunks))]
    for index, payload in enumerate(good):
        state.check_state(index, payload)
        for bad in (payload[:-4], payload + bytes(4), b""):
            with pytest.raises(PayloadError):
                state.check_state(index, bad)
        for value in (np.nan, np.inf, -np.inf, 2 * LARGEST):
            with pytest.raises(PayloadError):
                state.check_state(index, payload[:-4] + np.float32(value).tobytes())


def test_a_chunk_on_its_way_stays_as_it_was_when_the_worker_writes_the_next_contribution() -> None:
    state = ReplicaState(manifest("noloco"))
    vector = drawn(state, 1)
    encode = state.encoder(vector, 1)
    sent = [encode(index) for index in range(len(state.exchange))]
    before = [bytes(each) for each in sent]
    vector[:] = 7.0
    assert [bytes(each) for each in sent] == before


def test_a_replica_is_served_and_installed_like_any_state() -> None:
    one, other, third = (ReplicaState(manifest("noloco")) for _ in range(3))
    exchange(one, other, 1, drawn(one, 1), drawn(one, 2))
    one.passed(2)
    store = StateStore(one.committed)
    assert store.versions() == [0, 2]
    assert store.pin(2)
    described = store.describe(2)
    assert described is not None
    _, hashes = described
    chunks = [store.chunk(2, index) for index in range(len(hashes))]
    assert [content_hash(each) for each in chunks] == list(hashes)
    third.committed.install(2, chunks, one.root)
    assert (third.root, third.committed.current.round) == (one.root, 2)
