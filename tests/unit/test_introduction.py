"""How a newcomer learns what a run is, and what it makes of bad answers."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import SimpleNamespace
from typing import cast

import pytest

from shoal.node.introduction import MEMBERS_TOLD, find_manifest, introduce
from shoal.node.manifest import MAX_MANIFEST, Manifest, sign_manifest
from shoal.node.run import Run
from shoal.node.service import UnknownRun
from shoal.protocol.errors import LocalError, RemoteError, TransportError
from shoal.protocol.identity import Identity
from shoal.protocol.ids import PeerId
from shoal.protocol.messages.node import GetManifest, ManifestIs, Refused
from shoal.protocol.network import Network
from shoal.protocol.vetting import MAX_ADDRESS, MAX_ADDRESSES
from shoal.protocol.wire import Message

AUTHOR, ME = Identity.generate(), Identity.generate()
MANIFEST = Manifest(name="ours")
RUN = MANIFEST.run_id.hex()
ANNA, BERT, CARL = (Identity.generate().peer for _ in range(3))


def good(*members: tuple[PeerId, tuple[str, ...]]) -> ManifestIs:
    signature = sign_manifest(MANIFEST, AUTHOR.signer(MANIFEST.run_id))
    return ManifestIs(MANIFEST.canonical(), AUTHOR.peer, signature, members)


def network(answers: Mapping[PeerId, Message | Exception]) -> Network:
    """One that is connected with the peers that answer."""

    async def call(peer: PeerId, message: Message) -> Message:
        assert message == GetManifest(RUN[:8])
        answer = answers[peer]
        if isinstance(answer, Exception):
            raise answer
        return answer

    links = [SimpleNamespace(peer=peer) for peer in answers]
    return cast(Network, SimpleNamespace(links=lambda: links, call=call))


@pytest.mark.asyncio
async def test_bad_answers_do_not_keep_us_from_a_good_one() -> None:
    other = Manifest(name="another")
    forged = ManifestIs(MANIFEST.canonical(), AUTHOR.peer, b"x" * 64, ())
    wrong = ManifestIs(other.canonical(), AUTHOR.peer, b"", ())
    members = [(ME.peer, ("/ip4/192.0.2.1/tcp/1",)), (BERT, ("/ip4/192.0.2.2/tcp/1",)), (CARL, ())]
    answers: dict[PeerId, Message | Exception] = {
        PeerId("mute"): TransportError("no answer"),
        PeerId("forger"): forged,
        PeerId("mixer"): wrong,
        ANNA: Refused("no such run here"),
        BERT: good(*members),
    }
    found = await find_manifest(RUN[:8], network(answers), ME)
    assert (found.manifest, found.author) == (MANIFEST, AUTHOR.peer)
    assert found.members == {BERT: ("/ip4/192.0.2.2/tcp/1",), CARL: ()}
    assert next(iter(found.members)) == BERT


@pytest.mark.asyncio
async def test_without_a_good_answer_the_bad_one_is_told() -> None:
    with pytest.raises(UnknownRun, match="none of the 2 connected peers"):
        await find_manifest(RUN[:8], network({ANNA: Refused("no"), BERT: Refused("no")}), ME)
    forged = ManifestIs(MANIFEST.canonical(), AUTHOR.peer, b"x" * 64, ())
    with pytest.raises(RemoteError, match="forged or missing"):
        await find_manifest(RUN[:8], network({ANNA: Refused("no"), BERT: forged}), ME)
    with pytest.raises(LocalError, match="--bootstrap"):
        await find_manifest(RUN[:8], network({}), ME)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("members", "complaint"),
    [
        ([(Identity.generate().peer, ()) for _ in range(MEMBERS_TOLD + 1)], "names 17 members"),
        ([(CARL, ("/ip4/192.0.2.2/tcp/1",) * (MAX_ADDRESSES + 1))], "17 addresses"),
        ([(CARL, ("/" + "x" * MAX_ADDRESS,))], "an address of more than 256 characters"),
        ([(PeerId("nobody"), ())], "not a PeerID"),
        ([(PeerId(""), ())], "not a PeerID"),
    ],
)
async def test_members_that_nobody_can_have_named_in_good_faith_are_refused(
    members: list[tuple[PeerId, tuple[str, ...]]], complaint: str
) -> None:
    bad = good(*members)
    with pytest.raises(RemoteError, match=complaint) as refusal:
        await find_manifest(RUN[:8], network({BERT: bad}), ME)
    assert refusal.value.peer == BERT
    found = await find_manifest(RUN[:8], network({BERT: bad, ANNA: good((CARL, ()))}), ME)
    assert list(found.members) == [ANNA, CARL]


@pytest.mark.asyncio
async def test_a_manifest_that_is_too_large_is_not_even_hashed() -> None:
    large = dataclasses.replace(good(), manifest=bytes(MAX_MANIFEST + 1))
    with pytest.raises(RemoteError, match="a manifest of 65537 bytes") as refusal:
        await find_manifest(RUN[:8], network({BERT: large}), ME)
    assert refusal.value.peer == BERT


def run_of(manifest: Manifest) -> Run:
    entry = SimpleNamespace(addresses=("/ip4/192.0.2.2/tcp/1",))
    membership = SimpleNamespace(alive=lambda: [BERT], entry=lambda peer: entry)
    member = SimpleNamespace(me=ANNA, membership=membership)
    return cast(
        Run,
        SimpleNamespace(id=manifest.run_id, manifest=manifest, author=AUTHOR.peer, signature=b"sig", member=member),
    )


def test_we_introduce_newcomers_to_a_run_that_we_are_in() -> None:
    answer = introduce(GetManifest(RUN[:8]), [run_of(MANIFEST), run_of(Manifest(name="another"))], ("here",))
    members = ((ANNA, ("here",)), (BERT, ("/ip4/192.0.2.2/tcp/1",)))
    assert answer == ManifestIs(MANIFEST.canonical(), AUTHOR.peer, b"sig", members)


@pytest.mark.parametrize("prefix", ["", RUN[:7], "0123456789"])
def test_who_names_no_run_of_ours_is_refused(prefix: str) -> None:
    assert isinstance(introduce(GetManifest(prefix), [run_of(MANIFEST)], ()), Refused)
