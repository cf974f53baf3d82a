"""The swarm while it runs: all local peers, watched; whatever happens to them is noted and shown.

One task per peer asks for its status; others wait for a condition over all of them with `until`. A death that nobody
planned ends the play, and so does a worker or a run that has failed for good, and a swarm in which nothing moves any
more. It ends as well if who read what it says has gone.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from shoal.node.api.answers import Answer
from shoal.node.client.report.ledger import Ledger, is_replica
from shoal.node.client.up.display import Display
from shoal.node.client.up.peers import LocalPeer
from shoal.node.client.up.records import Metrics
from shoal.node.run.records import why_lapsed
from shoal.protocol.base.errors import LocalError, ShoalError
from shoal.protocol.base.ids import short

POLL = 0.4  # seconds between two looks at a peer
SAMPLE = 2.0  # seconds between two progress lines of a peer in metrics.jsonl
UNSETTLED = 16  # rounds: what a peer sends for one after it has committed is counted in it as well
STALLED = 180.0  # seconds in which no peer's round, phase or step changes
SAMPLED = ("round", "phase", "step", "loss", "tokens_per_second", "bytes_sent", "bytes_received", "samples")


class Unread(Exception):
    """Nobody reads any more what a play says."""

    def __init__(self) -> None:
        super().__init__("nobody reads what it says any more")


class Swarm:
    """The peers of one play, in the order in which they were started; `is_unread`: whether nobody reads of them."""

    def __init__(self, metrics: Metrics, display: Display, is_unread: Callable[[], bool]) -> None:
        self.peers: list[LocalPeer] = []
        self.ledger = Ledger()
        self.run = ""
        self._metrics = metrics
        self._display = display
        self._is_unread = is_unread
        self._changed = asyncio.Condition()
        self._moved_at = time.monotonic()

    @property
    def live(self) -> list[LocalPeer]:
        """Those whose process runs."""
        return [peer for peer in self.peers if peer.alive]

    @property
    def round(self) -> int:
        """The last round that any live peer has applied."""
        return max((peer.round for peer in self.live), default=0)

    def note(self, event: str, text: str, **fields: Any) -> None:
        """Something happened: into metrics.jsonl, and to the person who watches."""
        self._metrics.write("event", event=event, text=text, **fields)
        self.say(text)

    def say(self, text: str) -> None:
        """To the person who watches, and into no file."""
        if self._is_unread():
            raise Unread
        self._display.say(text)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until something that was seen of the peers makes `condition` true."""
        async with self._changed:
            await self._changed.wait_for(condition)

    async def watch(self, peer: LocalPeer) -> None:
        """Follow a peer until it dies; LocalError if that was not planned."""
        sampled = 0.0
        while peer.alive:
            before = _position(peer)
            await self._observe(peer)
            if _position(peer) != before:
                self._moved_at = time.monotonic()
            if peer.row and time.monotonic() - sampled > SAMPLE:
                sampled = time.monotonic()
                self._metrics.write("progress", peer=peer.name, **{key: peer.row.get(key) for key in SAMPLED})
            await self._tell()
            await asyncio.sleep(POLL)
        self._bury(peer)
        await self._tell()

    async def guard(self) -> None:
        """LocalError once nothing has moved for long; meant to run beside the watchers."""
        while (rest := self._moved_at + STALLED - time.monotonic()) > 0:
            await asyncio.sleep(rest)
        where = "; ".join(
            f"{peer.name}: {peer.row.get('phase', 'not in the run')} after round {peer.round}"
            + (f", {why}" if (why := peer.row.get("waiting_for")) else "")
            for peer in self.live
        )
        raise LocalError(f"nothing has moved for {STALLED:.0f} s ({where}); see the logs")

    async def collect(self) -> None:
        """Ask every live peer for the committed rounds that it has not told of."""
        for peer in self.live:
            await self._collect(peer)

    async def _observe(self, peer: LocalPeer) -> None:
        """Look at a peer; one that cannot answer now (it is dying, or busy) is looked at again.

        LocalError, with its words, if the run or its worker has failed there for good.
        """
        try:
            await peer.observe(self.run)
            if peer.round > peer.collected:
                await self._collect(peer)
        except ShoalError:
            return
        self._note_loss(peer)
        if why := peer.row.get("worker_failure"):
            raise LocalError(f"{peer.name} cannot train: {why} (its log is {peer.log})")
        self._see_failure(peer)

    def _see_failure(self, peer: LocalPeer) -> None:
        """LocalError if the run has failed on this peer; what it will try again by itself is said once."""
        why = str(peer.row.get("failure") or "")
        if why and not peer.row.get("may_be_opened_again"):
            raise LocalError(f"the run has failed on {peer.name}: {why} (its log is {peer.log})")
        if why and why != peer.failing:
            self.note("failing", f"the run fails on {peer.name}, which tries again: {why}", peer=peer.name)
        peer.failing = why

    def _note_loss(self, peer: LocalPeer) -> None:
        """Tell why a peer's worker was lost, once for as long as none trains."""
        before, peer.lost = peer.lost, peer.row.get("worker_lost") or ""
        if peer.lost not in ("", before):
            self.note("worker-lost", f"{peer.name}: {peer.lost}", peer=peer.name)

    async def _collect(self, peer: LocalPeer) -> None:
        """Ask for the records that are new, and for those whose bytes may have grown."""
        reached = peer.round
        records = await peer.ask(lambda client: client.rounds(self.run, reached - peer.collected + UNSETTLED))
        peer.collected, known = reached, set(self.ledger.reports)
        told = {(number, name) for number, by in self.ledger.reports.items() for name in by}
        for record in self.ledger.add(peer.name, map(dict, records)):
            self._metrics.write("round", peer=peer.name, **record)
            if is_replica(record) and (record["round"], peer.name) not in told:
                self.say(_own_round(peer.name, record))
        for each in self.ledger.rounds():
            if each.round not in known and not any(map(is_replica, self.ledger.reports[each.round].values())):
                self.say(
                    f"round {each.round} committed: {each.contributors} of {each.members} members counted, "
                    f"attempt {each.attempt}, {each.seconds:.1f} s, history {each.digest[:8]}"
                )

    def _bury(self, peer: LocalPeer) -> None:
        assert peer.child is not None
        code, report = peer.child.code(), peer.fault_report()
        if report is None or not peer.armed:
            raise LocalError(f"{peer.name} died unexpectedly (exit status {code}); {peer.last_words()}")
        peer.gone = True
        self.note("killed", f"{peer.name} was killed with SIGKILL: {report}", peer=peer.name, exit_status=code)

    async def _tell(self) -> None:
        self._display.show(self.peers)
        async with self._changed:
            self._changed.notify_all()


def _own_round(peer: str, record: Answer) -> str:
    """What a round was for one replica."""
    if record["partner"] is None:
        return f"{peer}, round {record['round']}: no exchange, as {why_lapsed(record['lapse'])}"
    return f"{peer}, round {record['round']}: exchanged with {short(record['partner'])} in {record['seconds']:.1f} s"


def _position(peer: LocalPeer) -> tuple[Any, ...]:
    return tuple(peer.row.get(key) for key in ("round", "phase", "step", "members"))
