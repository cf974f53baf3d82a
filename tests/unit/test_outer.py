"""The daemon's arithmetic: what a round commits, applied by two members, is the same state, and can be served."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

from shoal.node.manifest.manifest import CodecSpec, Manifest, ModelSpec, RoundSpec
from shoal.node.manifest.method import MethodSpec
from shoal.node.training.state.outer import OuterState, StateStore
from shoal.protocol.averaging.policy import Base
from shoal.protocol.base.errors import RemoteError
from shoal.protocol.base.ids import content_hash
from shoal.protocol.base.wire import Payload
from shoal.protocol.catchup.donor import state_root
from shoal.protocol.tensors.compression import CODECS

OUTER_ERROR = {"fp32": 1e-5, "fp16": 0.01, "bf16": 0.1, "int8": 0.1, "fp4": 5.0, "topk": 5.0}


def manifest(codec: str = "fp32") -> Manifest:
    return Manifest(
        name="tiny",
        model=ModelSpec(dim=16, layers=1, heads=2, kv_heads=1, hidden=32, context=16),
        method=MethodSpec(outer_lr=0.7, outer_momentum=0.9),
        rounds=RoundSpec(chunk_bytes=4096),
        codec=CodecSpec(scatter=codec, gather=codec),  # type: ignore[arg-type]
    )


def mean_of(state: OuterState, vectors: list[np.ndarray], weights: list[int]) -> list[Payload]:
    payloads = []
    round = state.committed.current.round + 1
    for chunk in range(len(state.bounds(round))):
        total = state.reducer(round).open(chunk)
        for vector, weight in zip(vectors, weights, strict=True):
            total.add(weight, state.encoder(vector, round)(chunk))
        payloads.append(total.finish())
    return payloads


@pytest.mark.parametrize("codec", CODECS)
def test_members_that_apply_the_same_bytes_hold_the_same_state(codec: str) -> None:
    one, other = OuterState(manifest(codec)), OuterState(manifest(codec))
    assert one.root == other.root
    rng = np.random.default_rng(1)
    vectors = [rng.standard_normal(one.elements, dtype=np.float32) for _ in range(3)]
    before = one.committed.current.array().copy()
    payloads = mean_of(one, vectors, [2, 1, 1])
    assert one.apply(payloads).root == other.apply(payloads).root != OuterState(manifest(codec)).root
    mean = (2 * vectors[0] + vectors[1] + vectors[2]) / 4
    error = np.abs(one.committed.current.array() - (before - 0.7 * 1.9 * mean)).max()
    assert error < OUTER_ERROR[codec]


def test_what_was_sent_last_does_not_keep_the_state() -> None:
    state = OuterState(manifest())
    there, encode = weakref.ref(state.committed), state.encoder(np.ones(state.elements, np.float32), 1)
    del state
    gc.collect()
    assert there() is None
    assert len(encode(0)) == 4096


def test_a_served_state_can_be_installed_and_a_wrong_one_is_refused() -> None:
    donor, joiner = OuterState(manifest()), OuterState(manifest())
    donor.apply(mean_of(donor, [np.ones(donor.elements, np.float32)], [1]))
    store = StateStore(donor.committed)
    assert store.versions() == [0, 1]
    layout, hashes = store.describe(1)
    chunks = [store.chunk(1, index) for index in range(len(hashes))]
    assert [content_hash(chunk) for chunk in chunks] == list(hashes)
    base = Base(1, 1, joiner.root, state_root(layout, hashes))
    bad = [bytes(len(chunks[0])), *chunks[1:]]
    before = joiner.root
    with pytest.raises(RemoteError):
        joiner.install(base, bad)
    assert joiner.root == before
    assert joiner.install(base, chunks).root == donor.root


def test_a_pinned_version_outlives_later_commits() -> None:
    state = OuterState(manifest())
    store = StateStore(state.committed)
    store.pin([0])
    first = store.chunk(0, 0)
    for _ in range(4):
        state.apply(mean_of(state, [np.ones(state.elements, np.float32)], [1]))
    assert store.versions() == [0, 3, 4]
    assert store.chunk(0, 0) == first
    store.pin([])
    state.apply(mean_of(state, [np.ones(state.elements, np.float32)], [1]))
    assert store.versions() == [4, 5]
    assert store.chunk(0, 0) == b"", "it is gone"
