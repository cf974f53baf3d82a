"""Runs of a manifest are told by its digest; what is said of them is hearsay until somebody introduces us."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from shoal.dht.effects import Found, Got
from shoal.dht.keys import manifest_key
from shoal.node.manifest.data import DataSpec
from shoal.node.manifest.manifest import Introduction, Manifest
from shoal.node.peers.discovery import Discovery
from shoal.node.run.same_manifest import MOST_RUNS, announced, live_runs, runs_at, runs_of, tell_runs
from shoal.protocol.base.errors import RemoteError, TransportError
from shoal.protocol.base.ids import Digest, PeerId, RunId
from shoal.protocol.base.wire import Message, encode
from shoal.protocol.messages.dht import Record
from shoal.protocol.messages.directory import ManifestEntry
from shoal.protocol.messages.node import GetRuns, Refused, RunsAre
from shoal.protocol.net.peers.network import Network
from tests.run_kit import id_of, introduced, unsigned

MANIFEST, OTHER = Manifest(name="ours"), Manifest(name="other")
ANNA, BERT, CARL = PeerId("anna"), PeerId("bert"), PeerId("carl")
RUNS = [id_of(MANIFEST, peer) for peer in (ANNA, BERT, CARL)]


def network(answers: dict[PeerId, Message | Exception]) -> Network:
    """One whose peers give these answers, and are at addresses that are called as they are."""

    async def call(peer: PeerId, question: Message) -> Message:
        assert question == GetRuns(MANIFEST.digest)
        if isinstance(answer := answers[peer], Exception):
            raise answer
        return answer

    async def connect(address: str) -> PeerId:
        if PeerId(address) not in answers:
            raise TransportError(f"nobody is at {address}")
        return PeerId(address)

    links = [SimpleNamespace(peer=peer) for peer in answers]
    return cast(Network, SimpleNamespace(call=call, connect=connect, links=lambda: links))


def discovery(*records: tuple[str, Message | bytes], servers: int = 1) -> Discovery:
    rows = [
        Found(Record(Digest(bytes(32)), ANNA, sub, each if isinstance(each, bytes) else encode(each), 1, 2**31, b""), 2)
        for sub, each in records
    ]

    async def get(key: Digest) -> Got:
        assert key == manifest_key(MANIFEST.digest)
        return Got(1, tuple(rows), 3, 1, 3)

    return cast(Discovery, SimpleNamespace(get=get, contacts=lambda: [ANNA] * servers))


def test_we_tell_of_the_runs_of_that_manifest_alone() -> None:
    ours = [(RUNS[0], MANIFEST), (unsigned(OTHER, ANNA).run, OTHER), (RUNS[1], MANIFEST)]
    assert tell_runs(GetRuns(MANIFEST.digest), ours) == RunsAre((RUNS[0], RUNS[1]))
    many = [(unsigned(MANIFEST, PeerId(f"{number}")).run, MANIFEST) for number in range(2 * MOST_RUNS)]
    answer = tell_runs(GetRuns(MANIFEST.digest), many)
    assert isinstance(answer, RunsAre)
    assert len(answer.runs) == MOST_RUNS


def test_a_file_that_names_its_text_without_the_pieces_finds_the_run_that_shares_it() -> None:
    data = DataSpec(name="files", digest="ab" * 32)
    shared = data.model_copy(update={"pieces": "cd" * 32, "size": 5})
    file, run, other = (Manifest(name="ours", data=each) for each in (data, shared, DataSpec(name="files")))
    assert tell_runs(GetRuns(file.digest), [(RUNS[0], run), (RUNS[1], other)]) == RunsAre((RUNS[0],))
    assert run.completes(file)


@pytest.mark.asyncio
async def test_who_does_not_answer_or_lies_keeps_nobody_from_answering(caplog: pytest.LogCaptureFixture) -> None:
    answers: dict[PeerId, Message | Exception] = {
        ANNA: RunsAre((RUNS[0],)),
        BERT: RunsAre((RUNS[1], RUNS[0])),
        CARL: RunsAre(tuple(RunId(bytes([number]) * 32) for number in range(MOST_RUNS + 1))),
        PeerId("old"): Refused("what is that?"),
        PeerId("gone"): TransportError("no answer"),
        PeerId("odd"): RemoteError("sent nonsense", PeerId("odd")),
    }
    assert set(await runs_of(answers, MANIFEST.digest, network(answers))) == {RUNS[0], RUNS[1]}
    assert "9 runs of one manifest" in caplog.text


@pytest.mark.asyncio
async def test_the_peers_at_addresses_are_asked_and_no_others() -> None:
    net = network({ANNA: RunsAre((RUNS[0],)), BERT: RunsAre((RUNS[1],))})
    assert await runs_at([ANNA, "nowhere"], MANIFEST.digest, net) == [RUNS[0]]
    with pytest.raises(TransportError, match="nobody is at nowhere"):
        await runs_at(["nowhere"], MANIFEST.digest, net)


@pytest.mark.asyncio
async def test_what_is_announced_under_another_name_is_not_read() -> None:
    entry = ManifestEntry(RUNS[0], ())
    records: list[tuple[str, Message | bytes]] = [
        (RUNS[0].hex(), entry),
        (RUNS[1].hex(), entry),
        (RUNS[2].hex(), b""),
        ("odd", b"\xc1"),
    ]
    assert await announced(discovery(*records), MANIFEST.digest) == [RUNS[0]]
    assert await announced(discovery(*records, servers=0), MANIFEST.digest) == []


@pytest.mark.asyncio
async def test_only_a_run_that_somebody_introduces_and_that_is_of_the_manifest_is_offered() -> None:
    found: dict[str, Introduction] = {RUNS[0].hex(): introduced(MANIFEST), RUNS[1].hex(): introduced(OTHER)}

    async def introduce(run: str) -> Introduction:
        if run not in found:
            raise TransportError("nobody knows it")
        return found[run]

    net: Any = network({ANNA: RunsAre((RUNS[0], RUNS[1]))})
    dht = discovery((RUNS[2].hex(), ManifestEntry(RUNS[2], ())))
    async with asyncio.timeout(10):
        assert await live_runs(MANIFEST.digest, net, dht, introduce) == [found[RUNS[0].hex()]]
