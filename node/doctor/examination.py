"""One examination: what was tried towards a peer, what is tried now, both ends' views, and how fast the path is.

Rules:
- Whoever asked hears of each step as it ends, and at last gets the report, in which all of it is once more.
- Who is connected is not dialled anew. Who is not is: at every address side by side, then by its relays.
- All of it has an end: DIAL_LIMIT, RELAY_LIMIT, MEET_LIMIT, and those of `weigh`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence

from shoal.node.doctor import views
from shoal.node.doctor.sources import Places, Sources, merge
from shoal.node.doctor.verdict import Verdict, of_connection, of_failure
from shoal.node.doctor.weigh import round_trip, weigh_from, weigh_to
from shoal.node.doctor.who import Wanted
from shoal.node.service import Answer
from shoal.protocol.account import Account
from shoal.protocol.addresses import resolve
from shoal.protocol.errors import RemoteError, ShoalError, TransportError
from shoal.protocol.ids import PeerId, short
from shoal.protocol.journal import OK, Step, Way
from shoal.protocol.messages.doctor import HowAmISeen, Seen
from shoal.protocol.multiaddrs import few, is_relayed
from shoal.protocol.network import Network
from shoal.protocol.weighing import MOST

LOOK = 0.1  # seconds between two looks whether a step has ended
DIAL_LIMIT, RELAY_LIMIT = 5.0, 10.0  # seconds for an address
OTHERS_LIMIT = 1.0  # seconds for the other addresses once one has answered
MEET_LIMIT = 6.0  # seconds in which two who were connected by a relay should have met
CALL_LIMIT = 8.0
MOST_DIRECT, MOST_RELAYED = 8, 4  # addresses
BY_RELAY = MOST // 4  # bytes each way: others need the relay, too


class Examination:
    """Of `wanted`; `standing` says what we are behind, see `Desk`."""

    def __init__(self, network: Network, sources: Sources, standing: Callable[[], Answer], wanted: Wanted) -> None:
        self._network, self._sources, self._standing = network, sources, standing
        self._peer, self._address = wanted.peer, wanted.address
        self._places: Places = {}
        self._own: list[Step] = []  # steps that the journal does not have
        self._told = set[tuple[str, str, str, float]]()
        self._begin = time.time()
        self._seen: Seen | None = None
        self._notes: dict[str, str] = {}
        self._rates: dict[str, float | None] = {}

    async def run(self) -> AsyncGenerator[Answer, None]:
        """What there is to tell, the report last."""
        if self._peer is not None:
            self._places = self._sources.places(self._peer)
        yield {"event": "peer", "peer": self._peer, "path": self._path, "addresses": views.places(self._places)}
        for step in self._fresh():
            yield views.step(step, is_live=False)
        work = asyncio.create_task(self._work())
        try:
            while not work.done():
                await asyncio.wait([work], timeout=LOOK)
                for step in self._fresh():
                    yield views.step(step, step.at >= self._begin)
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
            await self._see_whether_we_meet()
        if self._path is not None:
            await self._hear()
            await self._measure()

    async def _look_at_address(self) -> None:
        """Who is at the address that was given, if nobody was named, or if we are connected by another one."""
        begin = time.time()
        try:
            addresses = await resolve(self._address)
        except TransportError as error:
            self._note(Step(time.time(), Way.NAME, self._address, error.code, str(error), time.time() - begin))
            return
        if not is_relayed(self._address) and (self._peer is None or self._path is not None):
            await asyncio.gather(*(self._who_is_at(each) for each in few(addresses, MOST_DIRECT)))
        merge(self._places, {each: ["given"] for each in addresses})

    async def _who_is_at(self, address: str) -> None:
        """Note who answers there, and whether that is the peer, by a connection that serves for nothing else."""
        begin = time.time()
        try:
            found = await asyncio.wait_for(self._network.name_at(address), DIAL_LIMIT)
        except (TransportError, TimeoutError) as error:
            failure = error if isinstance(error, TransportError) else _silent()
            code, words = failure.code, str(failure).removeprefix(f"{address}: ")
        else:
            code, words = self._judge(found)
        self._note(Step(time.time(), Way.NAME, address, code, words, time.time() - begin))

    def _judge(self, found: PeerId) -> tuple[str, str]:
        """Whether who answered is the one that is wanted; if nobody was named, it is from now on."""
        if self._peer is None:
            self._peer, self._places = found, {**self._sources.places(found), **self._places}
        return (OK, f"{found} answers there") if found == self._peer else ("other-identity", f"{found} answers there")

    async def _reach(self) -> None:
        """Try each way now."""
        assert self._peer is not None
        if self._sources.has_directories:
            begin = time.time()
            found = await self._sources.look_up(self._peer)
            merge(self._places, found)
            words = "" if found else "no directory of our runs lists it"
            code = OK if found else "failed"
            self._note(Step(time.time(), Way.LOOKUP, "", code, words, time.time() - begin))
        direct = few([each for each in self._places if not is_relayed(each)], MOST_DIRECT)
        relayed = few([each for each in self._places if is_relayed(each)], MOST_RELAYED)
        await self._try_all(direct, DIAL_LIMIT)
        if self._path is None:
            await self._try_all(relayed, RELAY_LIMIT)

    async def _try_all(self, addresses: Sequence[str], limit: float) -> None:
        """Side by side; when one has answered the others have OTHERS_LIMIT more."""
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
                self._note(Step(time.time(), Way.DIAL, address, error.code, str(error), time.time() - begin))

    async def _see_whether_we_meet(self) -> None:
        """Whoever was called by a relay begins by itself."""
        until = asyncio.get_running_loop().time() + MEET_LIMIT
        while asyncio.get_running_loop().time() < until and self._path == "relayed":
            if any(step.way is Way.MEET and step.at >= self._begin for step in self._account.steps):
                return
            await asyncio.sleep(LOOK)

    async def _hear(self) -> None:
        """The other end's view."""
        assert self._peer is not None
        try:
            answer = await self._network.call(self._peer, HowAmISeen(), CALL_LIMIT)
        except RemoteError:
            self._notes["there"] = f"{short(self._peer)} does not say: it may run an older Shoal"
        except TransportError as error:
            self._notes["there"] = str(error)
        else:
            self._seen = answer if isinstance(answer, Seen) else None
            if self._seen is None:
                self._notes["there"] = f"{short(self._peer)} does not say: {getattr(answer, 'reason', 'nonsense')}"

    async def _measure(self) -> None:
        assert self._peer is not None
        most = BY_RELAY if self._path == "relayed" else MOST
        try:
            self._rates["trip"] = await round_trip(self._network, self._peer)
            up = await weigh_to(self._network, self._peer, most)
            self._rates["send"] = up.rate
            if up.rate:
                self._account.gauge.going.rate.note(up.carried, up.carried / up.rate)
            self._rates["receive"] = (await weigh_from(self._network, self._peer, most)).rate
        except ShoalError as error:
            self._notes["rate"] = str(error)

    # -- what is told ---------------------------------------------------------------------------------------

    @property
    def _account(self) -> Account:
        assert self._peer is not None
        return self._network.account(self._peer)

    @property
    def _path(self) -> str | None:
        return self._account.path if self._peer is not None else None

    def _has_just_come(self) -> bool:
        return any(step.at >= self._begin and step.code == OK for step in self._account.steps)

    def _note(self, step: Step) -> None:
        self._own.append(step)

    def _steps(self) -> list[Step]:
        noted = self._account.steps if self._peer is not None else ()
        return sorted([*noted, *self._own], key=lambda step: step.at)

    def _fresh(self) -> list[Step]:
        """Those not told yet."""
        fresh = [each for each in self._steps() if (each.way, each.where, each.code, each.at) not in self._told]
        self._told |= {(each.way, each.where, each.code, each.at) for each in fresh}
        return fresh

    def _report(self) -> Answer:
        steps, standing = self._steps(), self._standing()
        return {
            "event": "report",
            "peer": self._peer,
            "addresses": views.places(self._places),
            "steps": [views.step(each, each.at >= self._begin) for each in steps],
            **views.path(self._account if self._peer is not None else None, self._rates),
            "rate_note": self._notes.get("rate"),
            "here": standing,
            "there": views.theirs(self._seen),
            "there_note": self._notes.get("there"),
            "verdict": views.verdict(self._verdict(steps, standing)),
        }

    def _verdict(self, steps: Sequence[Step], standing: Answer) -> Verdict:
        if self._peer is not None and self._path is not None:
            return of_connection(self._account, time.time(), standing["nat"], self._seen, standing["ports"])
        name = short(self._peer) if self._peer is not None else "a node"
        live = [step for step in steps if step.at >= self._begin and step.way is not Way.LOOKUP]
        return of_failure(name, live, is_alone=not self._network.links())


def _silent() -> TransportError:
    return TransportError(f"no answer in {DIAL_LIMIT:g} s", "silent")
