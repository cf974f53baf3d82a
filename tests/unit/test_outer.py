"""The daemon's arithmetic: what a round commits, applied by two members, is the same state, and can be served."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import numpy as np
import pytest

from shoal.node.base.pools import DOWNLOADS
from shoal.node.manifest.manifest import CodecSpec, Manifest, ModelSpec, OriginSpec, RoundSpec
from shoal.node.manifest.method import MethodSpec
from shoal.node.training.models import registry
from shoal.node.training.state.committed import Snapshot
from shoal.node.training.state.outer import OuterState, StateStore
from shoal.protocol.base.errors import RemoteError
from shoal.protocol.base.ids import Digest, PeerId, content_hash
from shoal.protocol.base.wire import Payload
from shoal.protocol.catchup.donor import Donor
from shoal.protocol.messages.transfer import GetState, GetStateChunk
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


def served_by(donor: OuterState) -> tuple[bytes, tuple[Digest, ...], list[bytes]]:
    """Layout, hashes and chunks of a donor's state after round 1."""
    donor.apply(mean_of(donor, [np.ones(donor.elements, np.float32)], [1]))
    store = StateStore(donor.committed)
    assert store.versions() == [0, 1]
    described = store.describe(1)
    assert described is not None
    layout, hashes = described
    chunks = [store.chunk(1, index) for index in range(len(hashes))]
    assert [content_hash(chunk) for chunk in chunks] == list(hashes)
    return layout, hashes, chunks


def test_a_state_comes_chunk_by_chunk_and_is_served_meanwhile(tmp_path: Path) -> None:
    donor, joiner = OuterState(manifest()), OuterState(manifest())
    layout, hashes, chunks = served_by(donor)
    store = StateStore(joiner.committed, tmp_path / "download")
    assert store.begin(1, layout, hashes) == set()
    store.put(1, chunks[1])
    DOWNLOADS.join(10.0)
    assert (store.chunk(1, 0), store.chunk(1, 1), store.chunk(2, 1)) == (b"", chunks[1], b"")
    assert store.take(1) is None, "not all is here"
    assert store.begin(1, layout, hashes) == {1}, "it goes on where it was"
    for index in set(range(len(hashes))) - {1}:
        store.put(index, chunks[index])
    draft = store.take(1)
    assert draft is not None
    joiner.committed.adopt(draft.snapshot())
    assert (joiner.root, joiner.committed.current.round) == (donor.root, 1)
    assert list(tmp_path.iterdir()) == []
    assert [store.chunk(1, index) for index in range(len(hashes))] == chunks
    for state in (donor, joiner):
        state.apply(mean_of(state, [np.ones(state.elements, np.float32)], [1]))
    assert donor.root == joiner.root


def test_a_joiner_of_a_run_with_an_origin_does_not_make_the_seeds_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are of no use: its first round builds on a state that is downloaded, or in a checkpoint."""
    origin = OriginSpec(run="00" * 32, round=7, history="00" * 32, root="00" * 32, samples=0)
    monkeypatch.setattr(registry, "initial", None)
    state = OuterState(manifest().model_copy(update={"origin": origin}))
    assert not state.committed.current.array().any()


def test_a_state_of_another_shape_is_refused(tmp_path: Path) -> None:
    joiner = OuterState(manifest())
    before, chunks = joiner.root, [b"one", b"two"]
    store = StateStore(joiner.committed, tmp_path / "download")
    assert store.begin(1, b"another", [content_hash(chunk) for chunk in chunks]) == set()
    for index, chunk in enumerate(chunks):
        store.put(index, chunk)
    draft = store.take(1)
    assert draft is not None
    with pytest.raises(RemoteError, match="not of the shape"):
        draft.snapshot()
    assert joiner.root == before


@pytest.mark.parametrize("damage", ["none", "torn", "flipped", "gone"])
def test_what_a_dead_process_has_downloaded_is_hashed_again_and_not_fetched(tmp_path: Path, damage: str) -> None:
    donor, joiner, path = OuterState(manifest()), OuterState(manifest()), tmp_path / "log" / "download"
    layout, hashes, chunks = served_by(donor)
    store = StateStore(joiner.committed, path)
    store.begin(1, layout, hashes)
    for index in (0, 2, 1):
        store.put(index, chunks[index])
    DOWNLOADS.join(10.0)
    content = bytearray(path.read_bytes())
    match damage:
        case "torn":
            content = content[:-1]
        case "flipped":
            content[len(content) // 2] ^= 1
        case "gone":
            content.clear()
    path.write_bytes(content)
    again = StateStore(joiner.committed, path)
    here = again.begin(1, layout, hashes)
    assert here == {"none": {0, 1, 2}, "torn": {0, 2}, "flipped": {0}, "gone": set()}[damage]
    assert all(again.chunk(1, index) == chunks[index] for index in here), "others get it, too"
    for index in set(range(len(hashes))) - here:
        again.put(index, chunks[index])
    DOWNLOADS.join(10.0)
    assert StateStore(joiner.committed, path).begin(1, layout, hashes) == set(range(len(hashes)))
    draft = again.take(1)
    assert draft is not None
    joiner.committed.adopt(draft.snapshot())
    assert joiner.root == donor.root
    assert not path.exists()


def test_a_download_goes_on_where_nothing_can_be_written(tmp_path: Path) -> None:
    donor, joiner = OuterState(manifest()), OuterState(manifest())
    layout, hashes, chunks = served_by(donor)
    (tmp_path / "log").write_text("a file in the place of the folder")
    store = StateStore(joiner.committed, tmp_path / "log" / "download")
    store.begin(1, layout, hashes)
    for index, chunk in enumerate(chunks):
        store.put(index, chunk)
    draft = store.take(1)
    assert draft is not None
    joiner.committed.adopt(draft.snapshot())
    assert joiner.root == donor.root


def test_a_version_that_is_dropped_leaves_nothing(tmp_path: Path) -> None:
    donor, joiner = OuterState(manifest()), OuterState(manifest())
    layout, hashes, chunks = served_by(donor)
    store = StateStore(joiner.committed, tmp_path / "download")
    store.begin(1, layout, hashes)
    store.put(0, chunks[0])
    store.drop()
    DOWNLOADS.join(10.0)
    assert store.chunk(1, 0) == b""
    assert store.take(1) is None
    assert list(tmp_path.iterdir()) == []
    assert store.begin(1, layout, hashes) == set()


def test_a_pinned_version_outlives_later_commits() -> None:
    state = OuterState(manifest())
    store = StateStore(state.committed)
    assert store.pin(0)
    first = store.chunk(0, 0)
    for _ in range(4):
        state.apply(mean_of(state, [np.ones(state.elements, np.float32)], [1]))
    assert store.versions() == [0, 3, 4]
    assert store.chunk(0, 0) == first
    store.unpin_all_but([])
    state.apply(mean_of(state, [np.ones(state.elements, np.float32)], [1]))
    assert store.versions() == [4, 5]
    assert store.chunk(0, 0) == b"", "it is gone"
    assert (store.describe(0), store.pin(0)) == (None, False)


@pytest.mark.parametrize("calls", range(1, 6))
def test_a_version_may_go_while_a_joiner_asks_for_it(calls: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread drops the version before the newest, which is what donors offer, when it begins to apply a result."""
    state = OuterState(manifest())
    state.apply(mean_of(state, [np.ones(state.elements, np.float32)], [1]))
    store, left, versions = StateStore(state.committed), calls, state.committed.versions

    def may_go() -> list[Snapshot]:
        nonlocal left
        left -= 1
        found = versions()
        if left == 0:
            state.committed._spare_vectors()
        return found

    monkeypatch.setattr(state.committed, "versions", may_go)
    donor = Donor(0, lambda round, root: round == 0, store)
    offered = donor.offer(0.0, PeerId("joiner"), GetState(0, 0, 0))
    assert bool(offered) == (donor.oldest_lease() is not None)
    assert bool(donor.serve(0.0, PeerId("joiner"), GetStateChunk(0, 0, 0)))
