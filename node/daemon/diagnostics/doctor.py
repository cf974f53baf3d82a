"""`shoal doctor` in the daemon: what was tried towards a peer and is tried now, both ends' views, and how fast it is.

Rules:
- The caller gets each step as it ends, and at last a report that repeats all of them.
- A connected peer is not dialled again. Any other is dialled at all its addresses at once, then through relays.
- Everything has a time limit: DIAL_LIMIT, RELAY_LIMIT, MEET_LIMIT, and those of node/peers/bandwidth_probe.py.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from shoal.node.api.answers import Answer
from shoal.node.daemon.diagnostics.answering import DoctorResponder
from shoal.node.daemon.diagnostics.peer_checks import Verdict, of_connection, of_failure
from shoal.node.daemon.diagnostics.peer_lookup import AddressSources, KnownAddresses, PeerQuery, merge, parse_query
from shoal.node.peers.bandwidth_probe import probe_from, probe_to, round_trip
from shoal.node.peers.discovery import Discovery
from shoal.node.peers.gateway.router import port_in, ports_to_forward
from shoal.node.peers.peer_finder import PeerFinder
from shoal.node.peers.relaying import Relaying
from shoal.node.run.view import UNREACHED, as_reached
from shoal.protocol.base.errors import LocalError, RemoteError, ShoalError, TransportError
from shoal.protocol.base.ids import PeerId, short
from shoal.protocol.base.multiaddrs import is_relayed, shortlist
from shoal.protocol.base.wire import Message
from shoal.protocol.messages.doctor import Carry, HowAmISeen, Seen
from shoal.protocol.net.measure.bandwidth_probe import MOST
from shoal.protocol.net.measure.journal import MOST_STEPS, OK, Step, Way
from shoal.protocol.net.measure.link import LinkReport
from shoal.protocol.net.peers.network import Network
from shoal.protocol.net.system.addresses import resolve

if TYPE_CHECKING:
    from shoal.node.run.run import Run

AT_ONCE = 4  # examinations at a time
LOOK = 0.1  # seconds between two checks for steps that have ended
DIAL_LIMIT, RELAY_LIMIT = 5.0, 10.0  # seconds for an address
OTHERS_LIMIT = 1.0  # seconds for the other addresses once one has answered
MEET_LIMIT = 6.0  # seconds in which two peers connected by a relay should have met directly
CALL_LIMIT = 8.0
MOST_DIRECT, MOST_RELAYED = 8, 4  # addresses
BY_RELAY = MOST // 4  # bytes to measure a relayed path with, each way: others need the relay, too


class Doctor:
    """Examinations for our user, and answers for the peers that ask us."""

    def __init__(
        self,
        network: Network,
        discovery: Discovery,
        relaying: Relaying,
        peer_finder: PeerFinder,
        runs: Callable[[], Mapping[str, Run]],
    ) -> None:
        self._network, self._discovery, self._relaying = network, discovery, relaying
        self._sources = AddressSources(network, discovery, peer_finder, runs)
        self._answering = DoctorResponder(network, self.standing)
        self._under_way = 0

    def calls(self) -> dict[type[Message], Callable[[PeerId, Any], Message]]:
        """Handlers, by message, for the questions of peers that examine us."""
        return dict.fromkeys((HowAmISeen, Carry), self._answering.answer)

    async def examine(self, peer: str) -> AsyncGenerator[Answer, None]:
        """Examine `peer` (see `parse_query`): the events of `Examination.run`. LocalError if no peer is meant."""
        wanted = parse_query(peer, self._sources.peers())
        if wanted.peer == self._network.peer:
            raise LocalError("that is this node itself; `shoal status` says how it is", code="itself")
        if self._under_way >= AT_ONCE:
            raise LocalError(f"{AT_ONCE} peers are being looked at already; wait until one is done", code="busy")
        self._under_way += 1
        try:
            async for answer in Examination(self._network, self._sources, self.standing, wanted).run():
                yield answer
        finally:
            self._under_way -= 1

    def standing(self) -> Answer:
        """{reachability, nat, relays, addresses, ports}: how this node can be reached, and what it is behind."""
        return {
            "reachability": self._discovery.verdict.reachability,
            "nat": self._relaying.nat,
            "relays": self._relaying.relays,
            "addresses": list(self._network.addresses()),
            "ports": ports_to_forward(port_in(self._network.own_addresses())),
        }


class Examination:
    """One examination, of the peer or address that is `wanted`; `standing` is `Doctor.standing`."""

    def __init__(
        self, network: Network, sources: AddressSources, standing: Callable[[], Answer], wanted: PeerQuery
    ) -> None:
        self._network, self._sources, self._standing = network, sources, standing
        self._peer, self._address = wanted.peer, wanted.address
        self._places: KnownAddresses = {}
        self._own_steps: list[Step] = []  # steps of this examination that are not in the network's journal
        self._told = set[tuple[str, str, str, float]]()  # steps that the caller has got
        self._begin = time.time()
        self._seen: Seen | None = None
        self._there_note: str | None = None  # why the peer's own view is not known
        self._measured: dict[str, float | None] = {}  # by this examination; better than what passing traffic showed
        self._rate_note: str | None = None  # why not all was measured

    async def run(self) -> AsyncGenerator[Answer, None]:
        """Events as JSON: the peer, each step, and the report last (`DoctorEvent`)."""
        if self._peer is not None:
            self._places = self._sources.places(self._peer)
        yield {"event": "peer", "peer": self._peer, "path": self._path, "addresses": _places(self._places)}
        for step in self._new_steps():
            yield _step(step, is_live=False)
        work = asyncio.create_task(self._work())
        try:
            while not work.done():
                await asyncio.wait([work], timeout=LOOK)
                for step in self._new_steps():
                    yield _step(step, step.at >= self._begin)
            work.result()
            yield self._report()
        finally:
            work.cancel()
            await asyncio.wait([work])

    # -- what is done ---------------------------------------------------------------------------------------

    async def _work(self) -> None:
        if self._address:
            await self._look_at_address()
        if self._peer is not None and self._path is None:
            await self._reach()
        if self._path == "relayed" and self._has_just_come():
            await self._wait_for_direct_path()
        if self._path is not None:
            await self._ask_for_view()
            await self._measure()

    async def _look_at_address(self) -> None:
        """Find out who answers at the given address, if no peer was named, or we are connected by another address."""
        begin = time.time()
        try:
            addresses = await resolve(self._address)
        except TransportError as error:
            self._note(Way.NAME, self._address, error.code, str(error), begin)
            return
        if not is_relayed(self._address) and (self._peer is None or self._path is not None):
            await asyncio.gather(*(self._who_is_at(each) for each in shortlist(addresses, MOST_DIRECT)))
        merge(self._places, {each: ["given"] for each in addresses})

    async def _who_is_at(self, address: str) -> None:
        """Note who answers at an address, and whether that is the peer, by a connection made only for that."""
        begin = time.time()
        try:
            found = await asyncio.wait_for(self._network.name_at(address), DIAL_LIMIT)
        except (TransportError, TimeoutError) as error:
            failure = error if isinstance(error, TransportError) else _silent()
            code, words = failure.code, str(failure).removeprefix(f"{address}: ")
        else:
            code, words = self._judge(found)
        self._note(Way.NAME, address, code, words, begin)

    def _judge(self, found: PeerId) -> tuple[str, str]:
        """(code, words) of a peer having answered; if none was named, this one is examined from now on."""
        if self._peer is None:
            self._peer, self._places = found, {**self._sources.places(found), **self._places}
        return (OK, f"{found} answers there") if found == self._peer else ("other-identity", f"{found} answers there")

    async def _reach(self) -> None:
        """Look the peer up, and try each of its addresses now."""
        assert self._peer is not None
        if self._sources.has_directories:
            begin = time.time()
            found = await self._sources.look_up(self._peer)
            merge(self._places, found)
            words = "" if found else "no directory of our runs lists it"
            code = OK if found else "failed"
            self._note(Way.LOOKUP, "", code, words, begin)
        direct = shortlist([each for each in self._places if not is_relayed(each)], MOST_DIRECT)
        relayed = shortlist([each for each in self._places if is_relayed(each)], MOST_RELAYED)
        await self._try_all(direct, DIAL_LIMIT)
        if self._path is None:
            await self._try_all(relayed, RELAY_LIMIT)

    async def _try_all(self, addresses: Sequence[str], limit: float) -> None:
        """Dial all at the same time; when one has answered, the others have OTHERS_LIMIT seconds more."""
        tries = {asyncio.create_task(self._try(each, limit)) for each in addresses}
        try:
            while tries and self._path is None:
                _, tries = await asyncio.wait(tries, return_when=asyncio.FIRST_COMPLETED)
            if tries:
                await asyncio.wait(tries, timeout=OTHERS_LIMIT)
        finally:
            for each in tries:
                each.cancel()

    async def _try(self, address: str, limit: float) -> None:
        assert self._peer is not None
        begin = time.time()
        try:
            await self._network.try_at(self._peer, address, limit)
        except TransportError as error:
            if error.code == "other-identity":
                await self._who_is_at(address)
            elif error.code == "too-often":
                self._note(Way.DIAL, address, error.code, str(error), begin)

    async def _wait_for_direct_path(self) -> None:
        """Wait for a direct connection: a peer that was reached by a relay tries to make one by itself."""
        until = asyncio.get_running_loop().time() + MEET_LIMIT
        while asyncio.get_running_loop().time() < until and self._path == "relayed":
            if any(step.way is Way.MEET and step.at >= self._begin for step in self._account.steps):
                return
            await asyncio.sleep(LOOK)

    async def _ask_for_view(self) -> None:
        """Ask the peer for its view of us."""
        assert self._peer is not None
        try:
            answer = await self._network.call(self._peer, HowAmISeen(), CALL_LIMIT)
        except RemoteError:
            self._there_note = f"{short(self._peer)} does not say: it may run an older Shoal"
        except TransportError as error:
            self._there_note = str(error)
        else:
            self._seen = answer if isinstance(answer, Seen) else None
            if self._seen is None:
                self._there_note = f"{short(self._peer)} does not say: {getattr(answer, 'reason', 'nonsense')}"

    async def _measure(self) -> None:
        assert self._peer is not None
        most = BY_RELAY if self._path == "relayed" else MOST
        try:
            self._measured["rtt_ms"] = 1000 * await round_trip(self._network, self._peer)
            up = await probe_to(self._network, self._peer, most)
            self._measured["send_rate"] = up.rate
            if up.rate:
                self._account.gauge.going.rate.note(up.carried, up.carried / up.rate)
            self._measured["receive_rate"] = (await probe_from(self._network, self._peer, most)).rate
        except ShoalError as error:
            self._rate_note = str(error)

    # -- what is told ---------------------------------------------------------------------------------------

    @property
    def _account(self) -> LinkReport:
        assert self._peer is not None
        return self._network.link_report(self._peer)

    @property
    def _path(self) -> str | None:
        return self._account.path if self._peer is not None else None

    def _has_just_come(self) -> bool:
        return any(step.at >= self._begin and step.code == OK for step in self._account.steps)

    def _note(self, way: Way, where: str, code: str, words: str, begin: float) -> None:
        """Record a step that has just ended."""
        now = time.time()
        self._own_steps.append(Step(now, way, where, code, words, now - begin))

    def _steps(self) -> list[Step]:
        noted = self._account.steps if self._peer is not None else ()
        return sorted([*noted, *self._own_steps], key=lambda step: step.at)

    def _new_steps(self) -> list[Step]:
        """The steps that the caller has not got yet."""
        fresh = [each for each in self._steps() if (each.way, each.where, each.code, each.at) not in self._told]
        self._told |= {(each.way, each.where, each.code, each.at) for each in fresh}
        return fresh

    def _report(self) -> Answer:
        steps, standing = self._steps(), self._standing()
        return {
            "event": "report",
            "peer": self._peer,
            "addresses": _places(self._places),
            "steps": [_step(each, each.at >= self._begin) for each in steps],
            **self._connection(),
            "rate_note": self._rate_note,
            "here": standing,
            "there": _theirs(self._seen) if self._seen is not None else None,
            "there_note": self._there_note,
            "verdict": asdict(self._verdict(steps, standing)),
        }

    def _connection(self) -> Answer:
        """The keys of `PeerConnection`; measurements of this examination replace earlier estimates."""
        if self._path is None:
            return dict(UNREACHED)
        return as_reached(self._account) | {key: value for key, value in self._measured.items() if value is not None}

    def _verdict(self, steps: Sequence[Step], standing: Answer) -> Verdict:
        if self._peer is not None and self._path is not None:
            return of_connection(self._account, time.time(), standing["nat"], self._seen, standing["ports"])
        name = short(self._peer) if self._peer is not None else "a node"
        live = [step for step in steps if step.at >= self._begin and step.way is not Way.LOOKUP]
        return of_failure(name, live, is_alone=not self._network.links())


def _silent() -> TransportError:
    return TransportError(f"no answer in {DIAL_LIMIT:g} s", "silent")


# -- as plain JSON ----------------------------------------------------------------------------------------------


def _places(found: KnownAddresses) -> list[Answer]:
    """[{address, from}]: addresses at which the peer may be, and the sources that say so."""
    return [{"address": address, "from": sources} for address, sources in found.items()]


def _step(step: Step, is_live: bool) -> Answer:
    """{event, live, at, way, where, code, words, seconds, again, times}; see protocol/net/measure/journal.py."""
    return {"event": "step", "live": is_live, **asdict(step), "way": str(step.way)}


def _theirs(seen: Seen) -> Answer:
    """{addresses, path, reason_code, rtt_ms, reachability, nat, relays, steps}: a peer's view of us."""
    now, plain = time.time(), ("way", "where", "code", "times")
    steps = [{"at": now - each.ago / 1000, **{key: getattr(each, key) for key in plain}} for each in seen.tried]
    return {
        "addresses": list(seen.addresses),
        "path": seen.path,
        "reason_code": seen.reason,
        "rtt_ms": seen.trip / 1000 if seen.trip else None,
        "reachability": seen.reachability,
        "nat": seen.nat,
        "relays": seen.relays,
        "steps": steps[-MOST_STEPS:],
    }
