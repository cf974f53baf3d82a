"""A dataset on its way: from several donors, past liars and deaths, on from where it was."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shoal.node.training.data import fetch
from shoal.node.training.data import fetch as module
from shoal.node.training.data.fetch import MAX_WINDOW, DonorCalls, Fetch
from shoal.node.training.data.pieces import PIECES, TOP_BLOB
from shoal.node.training.data.store import Dataset, Store
from shoal.protocol.base.errors import LocalError, RemoteError, TransportError
from shoal.protocol.base.wire import Message
from shoal.protocol.messages.data import GetPiece, Later, PieceIs
from shoal.protocol.messages.node import GetManifest, Refused
from tests.unit.dataset_kit import ANNA, BOB, CARL, LIAR, Peers, dying, honest, lying, packed, wanted


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    return packed(tmp_path, files=20)  # sixteen pieces


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "data")


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK", 0.002)
    monkeypatch.setattr(module, "NO_DONOR_TIMEOUT", 0.05)
    monkeypatch.setattr(fetch, "MAX_REST", 0.002)


async def fetched(dataset: Dataset, store: Store, peers: Peers, swarm: DonorCalls | None = None) -> Dataset:
    fetch = Fetch(wanted(dataset), store, swarm or DonorCalls(peers.call), peers.names)
    return await asyncio.wait_for(fetch.run(), 20)


def same(made: Dataset, dataset: Dataset) -> bool:
    assert made.path is not None
    assert dataset.path is not None
    return made.path.read_bytes() == dataset.path.read_bytes() and made.index == dataset.index


@pytest.mark.asyncio
async def test_it_comes_from_all_who_have_it(dataset: Dataset, store: Store) -> None:
    peers = Peers(anna=honest(dataset), bob=honest(dataset), carl=honest(dataset))
    assert same(await fetched(dataset, store, peers), dataset)
    assert sum(map(peers.pieces_of, (ANNA, BOB, CARL))) == 16
    assert all(map(peers.pieces_of, (ANNA, BOB, CARL)))
    assert peers.most_at_once <= 3 * MAX_WINDOW


@pytest.mark.asyncio
async def test_a_liar_is_named_once_and_not_asked_again(
    dataset: Dataset, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    peers = Peers(liar=lying(dataset), anna=honest(dataset))
    swarm = DonorCalls(peers.call)
    assert same(await fetched(dataset, store, peers, swarm), dataset)
    assert peers.pieces_of(LIAR) >= 1
    lies = [record for record in caplog.records if getattr(record, "code", "") == "data-liar"]
    assert len(lies) == 1
    assert LIAR in lies[0].getMessage()
    asked = len(peers.asked)
    store.forget(dataset.digest)
    await fetched(dataset, store, peers, swarm)
    assert LIAR not in {peer for peer, _ in peers.asked[asked:]}


@pytest.mark.asyncio
async def test_nobody_but_liars_is_told_before_anything_is_on_disk(dataset: Dataset, store: Store) -> None:
    peers = Peers(liar=lambda message: PieceIs(b"no hashes"))
    with pytest.raises(LocalError, match="--data"):
        await fetched(dataset, store, peers)
    assert not store.folder(dataset.digest).exists()


@pytest.mark.asyncio
async def test_an_answer_of_another_kind_is_a_lie(dataset: Dataset, store: Store) -> None:
    peers = Peers(liar=lambda message: GetManifest("ab" * 8), anna=honest(dataset))
    swarm = DonorCalls(peers.call)
    await fetched(dataset, store, peers, swarm)
    assert list(swarm.liars) == [LIAR]


@pytest.mark.parametrize("error", [RemoteError("refused our call: tag 83 means nothing here", BOB), None])
@pytest.mark.asyncio
async def test_who_lacks_it_or_does_not_know_the_question_is_no_liar(
    dataset: Dataset, store: Store, error: RemoteError | None
) -> None:
    def bob(message: GetPiece) -> Message:
        if error is not None:
            raise error
        return Refused("these data are not here")

    peers = Peers(bob=bob, anna=honest(dataset))
    swarm = DonorCalls(peers.call)
    assert same(await fetched(dataset, store, peers, swarm), dataset)
    assert not swarm.liars
    assert [peer for peer, _ in peers.asked].count(BOB) == 1


@pytest.mark.asyncio
async def test_others_go_on_where_one_has_died(dataset: Dataset, store: Store) -> None:
    peers = Peers(anna=dying(honest(dataset), after=5), bob=honest(dataset))
    assert same(await fetched(dataset, store, peers), dataset)


@pytest.mark.asyncio
async def test_who_comes_back_later_is_served(dataset: Dataset, store: Store) -> None:
    turns = iter(range(1000))

    def busy(message: GetPiece) -> Message:
        return Later(1) if next(turns) % 2 else honest(dataset)(message)

    assert same(await fetched(dataset, store, Peers(anna=busy)), dataset)


@pytest.mark.asyncio
async def test_it_goes_on_where_all_had_died(dataset: Dataset, store: Store) -> None:
    with pytest.raises(TransportError, match=r"goes on from there"):
        await fetched(dataset, store, Peers(anna=dying(honest(dataset), after=9)))
    peers = Peers(bob=honest(dataset))
    assert same(await fetched(dataset, store, peers), dataset)
    assert peers.pieces_of(BOB) == 16 - 7  # the top and a page came before the seven


@pytest.mark.parametrize("content", ["nobody", "none has it"])
@pytest.mark.asyncio
async def test_it_is_said_that_nobody_has_it(dataset: Dataset, store: Store, content: str) -> None:
    lacks = {name: lambda message: Refused("not here") for name in ("anna", "bob")}
    with pytest.raises(LocalError, match="no member that can be reached gives them: start it with --data"):
        await fetched(dataset, store, Peers(**(lacks if content != "nobody" else {})))


@pytest.mark.asyncio
async def test_a_donor_that_comes_late_is_found(dataset: Dataset, store: Store) -> None:
    peers = Peers()
    getting = asyncio.create_task(fetched(dataset, store, peers))
    await asyncio.sleep(0)
    peers.donors[ANNA] = honest(dataset)
    assert same(await getting, dataset)


@pytest.mark.asyncio
async def test_a_full_disk_ends_it_and_blames_nobody(
    dataset: Dataset, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise LocalError("cannot keep data: no space left")

    monkeypatch.setattr("shoal.node.training.data.store.Download.put", full)
    swarm = DonorCalls(Peers(anna=honest(dataset)).call)
    with pytest.raises(LocalError, match="no space left"):
        await fetched(dataset, store, Peers(anna=honest(dataset)), swarm)
    assert not swarm.liars


@pytest.mark.asyncio
async def test_several_pieces_that_fail_at_once_are_one_error(
    dataset: Dataset, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = asyncio.Barrier(4)

    async def run(function: Callable[..., Any], *arguments: object) -> Any:
        if function.__name__ != "put":
            return function(*arguments)
        await failing.wait()
        raise LocalError("cannot keep data: no space left")

    async def refused() -> None:
        with pytest.raises(LocalError, match="no space left"):
            await fetched(dataset, store, Peers(anna=honest(dataset)))

    unhandled: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unhandled.append(context))
    monkeypatch.setattr(module, "DISK", SimpleNamespace(run=run))
    await asyncio.wait_for(refused(), 20)
    gc.collect()
    assert not unhandled


@pytest.mark.asyncio
async def test_it_ends_with_the_node_and_says_how_far_it_is(dataset: Dataset, store: Store) -> None:
    peers = Peers(anna=honest(dataset))
    swarm = DonorCalls(peers.call, lambda: getting.here >= 1 << 20)
    getting = Fetch(wanted(dataset), store, swarm, peers.names)
    assert getting.words == "0 of 4 MiB from 0 members"
    with pytest.raises(LocalError, match="ending"):
        await asyncio.wait_for(getting.run(), 20)
    assert 1 << 20 <= getting.here < wanted(dataset).size
    assert getting.words == f"{getting.here >> 20} of 4 MiB from 1 member"


@pytest.mark.asyncio
async def test_the_first_question_is_for_what_the_manifest_proves(dataset: Dataset, store: Store) -> None:
    peers = Peers(anna=honest(dataset))
    await fetched(dataset, store, peers)
    assert peers.asked[0] == (ANNA, TOP_BLOB)
    assert all(blob.level == PIECES for _, blob in peers.asked[2:])
