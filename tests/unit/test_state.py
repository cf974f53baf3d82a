"""The committed state: versions that never change, two sets of buffers, one root, equal files."""

from __future__ import annotations

import hashlib
import os
import resource
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from shoal.node.training.methods.diloco import outer_step
from shoal.node.training.methods.fragments import Fragment
from shoal.node.training.methods.method import MOMENTUM, PARAMETERS
from shoal.node.training.models.layout import Layout
from shoal.node.training.state import committed as state_module
from shoal.node.training.state.committed import CommittedState, Snapshot
from shoal.node.training.state.file import load_state, save_state
from shoal.node.training.state.shape import StateShape
from shoal.protocol.base.errors import LocalError, RemoteError
from shoal.protocol.base.ids import Digest, content_hash
from tests.unit.state_kit import nesterov, state_of

LAYOUT = Layout({"embed.weight": (100, 7), "layers.0.bias": (13,), "norm.weight": (2500,)})
SHAPE = StateShape(LAYOUT, chunk_bytes=4096)  # 4 chunks for each vector, the last one short


def numbers(seed: int) -> Tensor:
    return torch.randn(LAYOUT.size, generator=torch.Generator().manual_seed(seed))


def fresh() -> CommittedState:
    return state_of(SHAPE, numbers(0))


def chunks_of(snapshot: Snapshot) -> list[bytes]:
    return [bytes(snapshot.chunk(index)) for index in range(len(SHAPE.chunks))]


def test_chunks_cover_both_vectors_in_order() -> None:
    snapshot = fresh().current
    assert [chunk.size for chunk in SHAPE.chunks] == [4096, 4096, 4096, 564] * 2
    whole = b"".join(chunks_of(snapshot))
    assert whole == numbers(0).numpy().tobytes() + bytes(4 * LAYOUT.size)
    assert snapshot.chunk_hashes == tuple(map(content_hash, chunks_of(snapshot)))
    assert snapshot.root == SHAPE.root(snapshot.chunk_hashes)


def test_before_the_first_download_there_are_zeros_whose_hashes_are_right() -> None:
    nothing = {name: torch.zeros(LAYOUT.size) for name in SHAPE.vectors}
    empty, same = CommittedState(SHAPE).current, CommittedState(SHAPE, nothing).current
    assert (empty.root, empty.chunk_hashes) == (same.root, same.chunk_hashes)
    assert chunks_of(empty) == chunks_of(same)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_zeros_before_the_first_download_take_no_memory() -> None:
    shape = StateShape(Layout({"weight": (1 << 26,)}), chunk_bytes=1 << 20)
    before = _resident()
    state = CommittedState(shape)
    assert _resident() - before < state.current.vectors[PARAMETERS].nbytes / 4


def _resident() -> int:
    """Bytes of memory that this process holds."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def test_a_snapshots_chunks_cannot_be_written() -> None:
    with pytest.raises(TypeError, match="read-only"):
        fresh().current.chunk(0)[0] = 1


def test_the_root_depends_on_every_chunk_and_on_what_the_numbers_mean() -> None:
    roots = {fresh().current.root}
    for index in range(LAYOUT.size):
        if index % 500 == 0:
            changed = numbers(0)
            changed[index] += 1
            roots.add(state_of(SHAPE, changed).current.root)
            roots.add(state_of(SHAPE, numbers(0), changed).current.root)
    other_name = StateShape(Layout({"a": (LAYOUT.size,)}), 4096)
    other_cut = StateShape(LAYOUT, 8192)
    roots |= {state_of(shape, numbers(0)).current.root for shape in (other_name, other_cut)}
    assert len(roots) == 1 + 2 * 7 + 2


def test_the_root_does_not_depend_on_the_round() -> None:
    assert state_of(SHAPE, numbers(0), round=9).current.root == fresh().current.root


def test_apply_is_the_outer_step_to_the_bit() -> None:
    state = fresh()
    theta, momentum = numbers(0), torch.zeros(LAYOUT.size)
    for round in range(1, 5):
        delta = numbers(round)
        theta, momentum = outer_step(theta, momentum, delta, lr=0.7, momentum_factor=0.9)
        made = state.apply([delta], nesterov(0.7, 0.9))
        assert made is state.current
        assert made.round == round
        assert torch.equal(made.vectors[PARAMETERS], theta)
        assert torch.equal(made.vectors[MOMENTUM], momentum)
        assert made.root == state_of(SHAPE, theta, momentum).current.root


def test_a_mean_may_come_in_pieces_of_any_sizes() -> None:
    whole, cut = fresh(), fresh()
    for round, size in enumerate((1, 7, 4096, LAYOUT.size, 2 * LAYOUT.size), 1):
        expected = whole.apply([numbers(round)], nesterov(0.7, 0.9)).root
        assert cut.apply(numbers(round).split(size), nesterov(0.7, 0.9)).root == expected


def test_the_golden_outer_step() -> None:
    shape = StateShape(Layout({"w": (1,)}), 4096)
    state = state_of(shape, torch.tensor([1.0]))
    state.apply([torch.tensor([0.3])], nesterov(0.7, 0.9))
    assert state.current.vectors[PARAMETERS].item() == pytest.approx(0.601)
    state.apply([torch.tensor([0.2])], nesterov(0.7, 0.9))
    assert state.current.vectors[PARAMETERS].item() == pytest.approx(0.1649)


def test_the_previous_version_is_whole_until_the_next_commit() -> None:
    state = fresh()
    first = state.current
    before = chunks_of(first)
    state.apply([numbers(1)], nesterov(1.0, 0.5))
    assert state.previous is first
    assert chunks_of(first) == before


def test_two_sets_of_buffers_are_enough_without_leases() -> None:
    state = fresh()
    seen = set()
    for round in range(1, 7):
        seen.add(state.apply([numbers(round)], nesterov(1.0, 0.5)).vectors[PARAMETERS].data_ptr())
    assert len(seen) == 2


def test_rounds_of_fragments_are_to_the_bit_what_whole_copies_make(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spare buffers of the version before, new ones while it is leased, a round that failed, a state from elsewhere."""
    parts = (Fragment(((0, 700), (713, 1100))), Fragment(((700, 713),)), Fragment(((1100, LAYOUT.size),)))
    hashed: list[int] = []

    def counted(payloads: Sequence[memoryview]) -> tuple[Digest, ...]:
        hashed.append(len(payloads))
        return tuple(map(content_hash, payloads))

    state, rule = fresh(), nesterov(0.7, 0.9)
    monkeypatch.setattr(state_module, "_hash_all", counted)
    theta, momentum = numbers(0), torch.zeros(LAYOUT.size)
    for round in range(1, 25):
        part, lease = parts[round % 3], state.lease() if round % 4 == 0 else None
        if round % 5 == 0:
            with pytest.raises(LocalError):
                state.apply([numbers(round)[: part.size - 1]], rule, part)
        if round % 7 == 0:
            served = state_of(SHAPE, theta, momentum, round=round - 1).current
            state.install(round - 1, map(served.chunk, range(len(SHAPE.chunks))), served.root)
        delta = part.take(numbers(round))
        moved = outer_step(part.take(theta), part.take(momentum), delta, lr=0.7, momentum_factor=0.9)
        theta, momentum = part.put(theta, moved[0]), part.put(momentum, moved[1])
        del hashed[:]
        made = state.apply(delta.split(100), rule, part)
        assert hashed == [(4, 2, 6)[round % 3]], "chunks of 1024 numbers with some of the fragment"
        expected = state_of(SHAPE, theta, momentum).current
        assert (made.round, made.root, made.chunk_hashes) == (round, expected.root, expected.chunk_hashes)
        assert torch.equal(made.vectors[PARAMETERS], theta)
        assert torch.equal(made.vectors[MOMENTUM], momentum)
        if lease is not None and round % 8 == 0:
            lease.release()


def test_a_leased_version_outlives_commits_and_is_found_by_its_root() -> None:
    state = fresh()
    root, before = state.current.root, chunks_of(state.current)
    lease = state.lease()
    for round in range(1, 4):
        state.apply([numbers(round)], nesterov(1.0, 0.5))
    with state.lease(root) as again:
        assert again is lease.snapshot
        lease.release()
        lease.release()
        state.apply([numbers(4)], nesterov(1.0, 0.5))
        assert chunks_of(again) == before
    with pytest.raises(LocalError, match="not held any more"):
        state.lease(root)


def test_a_leased_previous_version_is_not_overwritten() -> None:
    state = fresh()
    state.apply([numbers(1)], nesterov(1.0, 0.5))
    assert state.previous is not None
    with state.lease(state.previous.root) as pinned:
        before = chunks_of(pinned)
        state.apply([numbers(2)], nesterov(1.0, 0.5))
        assert chunks_of(pinned) == before


def test_a_joiner_installs_a_donors_version_and_both_go_on_alike() -> None:
    donor = fresh()
    donor.apply([numbers(1)], nesterov(0.7, 0.9))
    joiner = state_of(SHAPE, numbers(99))
    with donor.lease() as served:
        joiner.install(served.round, map(served.chunk, range(len(SHAPE.chunks))), served.root)
    assert joiner.current.round == 1
    assert joiner.current.root == donor.current.root
    delta = numbers(2)
    assert joiner.apply([delta], nesterov(0.7, 0.9)).root == donor.apply([delta], nesterov(0.7, 0.9)).root


@pytest.mark.parametrize("fault", ["missing", "extra", "short", "flipped", "swapped"])
def test_a_wrong_state_is_refused_and_ours_stays(fault: str) -> None:
    donor = fresh().apply([numbers(1)], nesterov(0.7, 0.9))
    chunks = chunks_of(donor)
    match fault:
        case "missing":
            chunks.pop()
        case "extra":
            chunks.append(b"")
        case "short":
            chunks[2] = chunks[2][:-1]
        case "flipped":
            chunks[5] = bytes([chunks[5][0] ^ 1]) + chunks[5][1:]
        case "swapped":
            chunks[0], chunks[1] = chunks[1], chunks[0]
    joiner = state_of(SHAPE, numbers(99))
    before, ours = joiner.current, chunks_of(joiner.current)
    with pytest.raises(RemoteError):
        joiner.install(1, chunks, donor.root)
    assert joiner.current is before
    assert chunks_of(joiner.current) == ours


def test_a_vector_of_another_size_or_type_is_refused() -> None:
    state = fresh()
    whole = torch.zeros(LAYOUT.size)
    for wrong in ([], [torch.zeros(3)], [whole.double()], [whole, torch.zeros(1)]):
        with pytest.raises(LocalError):
            state.apply(wrong, nesterov(1.0, 0.0))
    assert state.current.round == 0


def test_hashing_in_threads_gives_the_same_root(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = fresh().current
    monkeypatch.setattr(state_module, "HASH_ALONE_BELOW", 0)
    monkeypatch.setattr(state_module, "HASH_THREADS", 3)
    threaded = fresh().current
    assert threaded.chunk_hashes == alone.chunk_hashes
    assert threaded.root == alone.root


# -- files --------------------------------------------------------------------------------------------------


def test_equal_states_write_equal_files_and_come_back(tmp_path: Path) -> None:
    sums = set()
    for name in ("a", "b", "c"):
        state = fresh()
        state.apply([numbers(1)], nesterov(0.7, 0.9))
        save_state(state.current, tmp_path / name)
        sums.add(hashlib.sha256((tmp_path / name).read_bytes()).hexdigest())
    assert len(sums) == 1
    back = load_state(tmp_path / "a", SHAPE)
    assert back.current.round == 1
    assert back.current.root == state.current.root
    assert sorted(os.listdir(tmp_path)) == ["a", "b", "c"]


def test_the_parameters_have_the_models_names(tmp_path: Path) -> None:
    state = fresh()
    state.apply([numbers(1)], nesterov(0.7, 0.9))
    save_state(state.current, tmp_path / "state.safetensors")
    tensors = load_file(tmp_path / "state.safetensors")
    assert len(tensors) == 6
    for place in LAYOUT:
        flat = state.current.vectors[PARAMETERS][place.start : place.stop]
        assert torch.equal(tensors[place.name], flat.view(place.shape))
        assert tensors[f"outer.momentum.{place.name}"].shape == place.shape


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "state"
    save_state(fresh().current, path)
    good = path.read_bytes()
    for damaged, reason in (
        (good[:-5000] + bytes([good[-5000] ^ 1]) + good[-4999:], "damaged"),
        (good[:-1], "not a state file"),
        (b"", "not a state file"),
    ):
        path.write_bytes(damaged)
        with pytest.raises(LocalError, match=reason):
            load_state(path, SHAPE)
    save_file({"embed.weight": torch.zeros(3)}, path)
    with pytest.raises(LocalError, match="not a state file"):
        load_state(path, SHAPE)
    with pytest.raises(LocalError, match="not a state file"):
        load_state(tmp_path / "none", SHAPE)


def test_the_file_of_another_model_is_refused(tmp_path: Path) -> None:
    save_state(fresh().current, tmp_path / "state")
    with pytest.raises(LocalError, match="not those of the model"):
        load_state(tmp_path / "state", StateShape(Layout({"other": (5,)}), 4096))


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = fresh()
    path = tmp_path / "state"
    save_state(state.current, path)
    before = path.read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    state.apply([numbers(1)], nesterov(0.7, 0.9))
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(LocalError, match="No space left"):
        save_state(state.current, path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["state"]


def test_an_unknown_root_cannot_be_leased() -> None:
    with pytest.raises(LocalError, match="not held"):
        fresh().lease(Digest(bytes(32)))
