"""How a newcomer learns what a run is, and how it treats bad answers."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import msgpack
import pytest

from shoal.dht.link import RunLink, format_link, parse_link
from shoal.node.api.errors import UnknownRun
from shoal.node.manifest.manifest import MAX_MANIFEST, PROTOCOL, Manifest, NewerProtocol
from shoal.node.run.introduction import MEMBERS_TOLD, NamedRun, find_manifest, introduce, link_to, parse_run_name
from shoal.node.run.run import Run
from shoal.protocol.base.errors import LocalError, RemoteError, TransportError
from shoal.protocol.base.ids import NO_DIGEST, Digest, PeerId, RunId, digest
from shoal.protocol.base.wire import Message
from shoal.protocol.log.anchors import anchor_of
from shoal.protocol.log.register import founded
from shoal.protocol.membership.vetting import MAX_ADDRESS, MAX_ADDRESSES
from shoal.protocol.messages.anchor import Anchor
from shoal.protocol.messages.dht import Contact
from shoal.protocol.messages.genesis import NONCE_SIZE, SIGNED_AS, manifest_digest, run_id, sign_genesis
from shoal.protocol.messages.node import GetManifest, ManifestIs, Refused
from shoal.protocol.net.measure.journal import OTHER as OTHER_ANSWERS
from shoal.protocol.net.measure.journal import TOO_OFTEN
from shoal.protocol.net.peers.network import Network
from shoal.protocol.net.system.identity import Identity
from tests.run_kit import AUTHOR, id_of, on_paper, unsigned

ME = Identity.generate()
MANIFEST = Manifest(name="ours")
RUN, GENESIS = id_of(MANIFEST).hex(), on_paper(MANIFEST).genesis
ANNA, BERT, CARL = (Identity.generate().peer for _ in range(3))


TIPS = tuple(digest("entry", bytes([number])) for number in range(10))
REGISTER = dataclasses.replace(founded(Digest(id_of(MANIFEST)), ANNA, 1), number=9, tips=TIPS)
ANCHOR = Anchor(8, TIPS[8][:8], REGISTER.branch[:8])


def good(*members: tuple[PeerId, tuple[str, ...]]) -> ManifestIs:
    return ManifestIs(GENESIS, members, 3, 14, 2.5, 9, REGISTER.branch)


def lie(**changed: Any) -> ManifestIs:
    """A good answer but for the genesis in it."""
    return dataclasses.replace(good(), genesis=dataclasses.replace(GENESIS, **changed))


THIEF = Identity.of_seed(b"somebody else".ljust(32))
STOLEN = lie(author=THIEF.peer, signature=THIEF.signer(id_of(MANIFEST)).sign(SIGNED_AS))
FORGED, MUTE = lie(signature=b"x" * 64), lie(signature=b"")
UNDER_A_KNOWN_NAME = lie(signature=THIEF.signer(id_of(MANIFEST)).sign(SIGNED_AS))
WRONG = ManifestIs(on_paper(Manifest(name="another")).genesis, (), 1, 0, 0.0, 0, NO_DIGEST)
TAMPERED = lie(manifest=MANIFEST.canonical()[:-1] + b"x")


class Silence:
    """An answer, or a connection, that never comes."""


SILENCE = Silence()


class World:
    """A network: peers that are connected, and such as are behind addresses. It notes who was asked."""

    def __init__(
        self,
        answers: Mapping[PeerId, Message | Exception | Silence],
        doors: Mapping[str, PeerId | Exception | Silence] | None = None,
        connected: tuple[PeerId, ...] | None = None,
        run: str = RUN[:8],
    ) -> None:
        self._answers, self._doors, self._run = answers, doors or {}, run
        self._links = [SimpleNamespace(peer=peer) for peer in (connected if connected is not None else answers)]
        self.asked: list[PeerId] = []
        self.remembered: dict[PeerId, tuple[str, ...]] = {}

    def links(self) -> list[SimpleNamespace]:
        return self._links

    async def connect(self, address: str) -> PeerId:
        return await _happens(self._doors[address])

    async def call(self, peer: PeerId, message: Message) -> Message:
        assert message == GetManifest(self._run)
        self.asked.append(peer)
        return await _happens(self._answers[peer])

    def remember(self, peer: PeerId, addresses: tuple[str, ...]) -> None:
        self.remembered[peer] = addresses


T = TypeVar("T")


async def _happens(what: T | Exception | Silence) -> T:
    if isinstance(what, Silence):
        await asyncio.get_running_loop().create_future()
        raise AssertionError
    if isinstance(what, Exception):
        raise what
    return what


def network(answers: Mapping[PeerId, Message | Exception | Silence], run: str = RUN[:8]) -> Network:
    """A network that is connected with the peers that answer."""
    return cast(Network, World(answers, run=run))


@pytest.mark.asyncio
async def test_bad_answers_do_not_keep_us_from_a_good_one() -> None:
    members = [(ME.peer, ("/ip4/192.0.2.1/tcp/1",)), (BERT, ("/ip4/192.0.2.2/tcp/1",)), (CARL, ())]
    answers: dict[PeerId, Message | Exception | Silence] = {
        PeerId("gone"): TransportError("no answer"),
        PeerId("mute"): SILENCE,
        PeerId("forger"): FORGED,
        PeerId("mixer"): WRONG,
        PeerId("meddler"): TAMPERED,
        ANNA: Refused("no such run here"),
        BERT: good(*members),
    }
    found = await find_manifest(RUN[:8], network(answers), ME)
    assert (found.manifest, found.genesis.author) == (MANIFEST, AUTHOR.peer)
    assert found.members == {BERT: ("/ip4/192.0.2.2/tcp/1",), CARL: ()}
    assert next(iter(found.members)) == BERT
    assert (found.present, found.round, found.pace) == (3, 14, 2.5)


@pytest.mark.asyncio
async def test_without_a_good_answer_the_bad_one_is_told() -> None:
    with pytest.raises(UnknownRun, match="none of the 2 peers that answered"):
        await find_manifest(RUN[:8], network({ANNA: Refused("no"), BERT: Refused("no")}), ME)
    gone = TransportError("no answer from CARL")
    with pytest.raises(TransportError, match="no answer from CARL; others do not know it"):
        await find_manifest(RUN[:8], network({CARL: gone, BERT: Refused("no")}), ME)
    with pytest.raises(LocalError, match="give its whole link, as `shoal run link` prints it"):
        await find_manifest(RUN[:8], network({}), ME)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("lie", "complaint"),
    [
        (FORGED, "has not signed"),
        (MUTE, "has not signed"),
        (UNDER_A_KNOWN_NAME, "has not signed"),
        (STOLEN, "author was changed"),
        (WRONG, "answered with another run"),
        (TAMPERED, "manifest or author was changed"),
        (lie(nonce=bytes(NONCE_SIZE - 1)), "author was changed"),
        (lie(author=CARL), "author was changed"),
        (dataclasses.replace(good(), pace=-1.0), "a round takes -1 seconds"),
        (dataclasses.replace(good(), pace=1e12), r"a round takes 1e\+12 seconds"),
    ],
)
async def test_who_tells_a_lie_is_named_and_not_the_author(lie: ManifestIs, complaint: str) -> None:
    with pytest.raises(RemoteError, match=complaint) as refusal:
        await find_manifest(RUN[:8], network({ANNA: Refused("no"), BERT: lie}), ME)
    assert refusal.value.peer == BERT


@pytest.mark.asyncio
async def test_a_run_of_a_newer_protocol_says_upgrade() -> None:
    table = {**msgpack.unpackb(MANIFEST.canonical()), "protocol": PROTOCOL + 1, "invented": {"later": True}}
    newer = msgpack.packb(table)
    run = run_id(manifest_digest(newer), AUTHOR.peer, bytes(NONCE_SIZE))
    genesis = sign_genesis(newer, bytes(NONCE_SIZE), AUTHOR.signer(run))
    world = World({BERT: dataclasses.replace(good(), genesis=genesis), ANNA: SILENCE}, run=run.hex())
    with pytest.raises(NewerProtocol, match=r"speaks protocol 3.*upgrade"):
        await find_manifest(run.hex(), cast(Network, world), ME)


HERE, THERE, HOLE = (f"/ip4/192.0.2.{host}/tcp/4101" for host in (1, 2, 3))


@pytest.mark.asyncio
async def test_addresses_of_a_link_are_tried_side_by_side_and_nobody_is_asked_twice() -> None:
    doors: dict[str, PeerId | Exception | Silence] = {HOLE: SILENCE, HERE: TransportError("refused"), THERE: BERT}
    world = World({BERT: good(), ANNA: Refused("no")}, doors, connected=(ANNA,))
    async with asyncio.timeout(5):
        found = await find_manifest(RUN[:8], cast(Network, world), ME, [HOLE, HERE, THERE, THERE])
    assert next(iter(found.members)) == BERT
    assert sorted(world.asked) == sorted([ANNA, BERT])
    assert world.remembered == {}, "who only looks keeps nothing"


@pytest.mark.asyncio
async def test_a_host_that_was_dialled_too_often_is_not_dialled_by_another_way() -> None:
    """That bound keeps us from flooding whoever is said to be there, and a dial without a name is not counted."""
    spent = TransportError("dialled in vain too often, wait a little", TOO_OFTEN)
    doors: dict[str, PeerId | Exception | Silence] = {f"{HERE}/p2p/{CARL}": spent, HERE: BERT}
    world = World({BERT: good()}, doors, connected=())
    with pytest.raises(TransportError, match="too often"):
        await find_manifest(RUN[:8], cast(Network, world), ME, [f"{HERE}/p2p/{CARL}"])


@pytest.mark.asyncio
async def test_whoever_answers_where_another_was_named_is_asked() -> None:
    """A member with a new key, or at an address that was another's: the answer is checked in any case."""
    other = TransportError("somebody else answers there", OTHER_ANSWERS)
    relayed = f"{THERE}/p2p/{ANNA}/p2p-circuit/p2p/{CARL}"
    doors: dict[str, PeerId | Exception | Silence] = {f"{HERE}/p2p/{CARL}": other, HERE: BERT, relayed: other}
    world = World({BERT: good(), ANNA: Refused("no")}, doors, connected=(ANNA,))
    found = await find_manifest(RUN[:8], cast(Network, world), ME, [relayed, f"{HERE}/p2p/{CARL}"])
    assert next(iter(found.members)) == BERT
    doors = {f"{HERE}/p2p/{CARL}": other, HERE: TransportError("refused")}
    with pytest.raises(TransportError, match=f"{HERE}/p2p/{CARL}: somebody else answers there"):
        await find_manifest(RUN[:8], cast(Network, World({}, doors)), ME, [f"{HERE}/p2p/{CARL}"])


@pytest.mark.asyncio
async def test_every_address_that_failed_is_named() -> None:
    doors = {HERE: TransportError("refused"), THERE: LocalError("this node itself")}
    with pytest.raises(TransportError, match=f"{HERE}: refused; {THERE}: this node itself"):
        await find_manifest(RUN[:8], cast(Network, World({}, doors)), ME, [HERE, THERE])


@pytest.mark.asyncio
async def test_providers_are_looked_for_once_somebody_has_not_helped() -> None:
    looked: list[RunId] = []

    async def providers(run: RunId) -> list[Contact]:
        looked.append(run)
        return [Contact(CARL, (f"{HERE}/p2p/{CARL}", THERE)), Contact(ANNA, ())]

    doors = {f"{HERE}/p2p/{CARL}": CARL}
    world = World({CARL: good(), ANNA: Refused("no"), BERT: SILENCE}, doors, connected=(ANNA, BERT), run=RUN)
    async with asyncio.timeout(5):
        found = await find_manifest(RUN, cast(Network, world), ME, (), providers)
    assert next(iter(found.members)) == CARL
    assert looked == [id_of(MANIFEST)]
    world = World({ANNA: good()}, run=RUN)
    await find_manifest(RUN, cast(Network, world), ME, (), providers)
    assert len(looked) == 1


def test_what_a_person_names_a_run_by() -> None:
    assert parse_run_name(RUN[:8].upper()) == NamedRun(RUN[:8])
    assert parse_run_name(format_link(id_of(MANIFEST), [HERE], anchor=ANCHOR)) == (RUN, (HERE,), ANCHOR)
    with pytest.raises(LocalError, match="no link to a run"):
        parse_run_name("short")


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
async def test_whose_log_ends_below_the_anchor_of_the_link_does_not_introduce_us() -> None:
    """Such as an old copy of a member's home; whoever is up to date does."""
    old = dataclasses.replace(good(), end=7)
    with pytest.raises(RemoteError, match=r"ends at entry 7, and the link names entry 8") as refusal:
        await find_manifest(RUN, network({BERT: old}, run=RUN), ME, anchor=ANCHOR)
    assert refusal.value.peer == BERT
    found = await find_manifest(RUN, network({BERT: old, CARL: good()}, run=RUN), ME, anchor=ANCHOR)
    assert (list(found.members), found.anchor) == ([CARL], ANCHOR)


@pytest.mark.asyncio
async def test_a_shorter_log_of_another_branch_than_that_of_the_link_does_introduce_us() -> None:
    """The run may have left that branch; which of the two holds is seen in the log itself."""
    elsewhere = dataclasses.replace(good(), end=7, branch=digest("a branch"))
    found = await find_manifest(RUN, network({BERT: elsewhere}, run=RUN), ME, anchor=ANCHOR)
    assert (list(found.members), found.anchor) == ([BERT], ANCHOR)


@pytest.mark.asyncio
async def test_a_manifest_that_is_too_large_is_not_even_hashed() -> None:
    large = lie(manifest=bytes(MAX_MANIFEST + 1))
    with pytest.raises(RemoteError, match="a manifest of 65537 bytes") as refusal:
        await find_manifest(RUN[:8], network({BERT: large}), ME)
    assert refusal.value.peer == BERT


def run_of(manifest: Manifest) -> Run:
    made = SimpleNamespace(id=id_of(manifest), manifest=manifest, genesis=unsigned(manifest), me=ANNA)
    made.others = lambda: {BERT: ("/ip4/192.0.2.2/tcp/1",)}
    made.pace = (7, 1.5)
    made.register = REGISTER
    return cast(Run, made)


def test_we_introduce_newcomers_to_a_run_that_we_are_in() -> None:
    answer = introduce(GetManifest(RUN[:8]), [run_of(MANIFEST), run_of(Manifest(name="another"))], ("here",))
    members = ((ANNA, ("here",)), (BERT, ("/ip4/192.0.2.2/tcp/1",)))
    assert answer == ManifestIs(unsigned(MANIFEST), members, 2, 7, 1.5, 9, REGISTER.branch)


def test_a_link_leads_to_us_and_to_the_others() -> None:
    link = link_to(run_of(MANIFEST), (f"{HERE}/p2p/{ANNA}", "/ip4/127.0.0.1/tcp/4101"))
    assert parse_link(link) == RunLink(id_of(MANIFEST), (HERE, "/ip4/192.0.2.2/tcp/1"), anchor_of(REGISTER))


@pytest.mark.parametrize("prefix", ["", RUN[:7], "0123456789"])
def test_who_names_no_run_of_ours_is_refused(prefix: str) -> None:
    assert isinstance(introduce(GetManifest(prefix), [run_of(MANIFEST)], ()), Refused)
