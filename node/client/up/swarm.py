"""The swarm while it runs: watches all local peers, writes what happens to metrics.jsonl, and shows it.

One task per peer asks for its status; other tasks wait for a condition over all peers with `until`. These end the play:
an unplanned death, a worker or a run that has failed for good, a swarm without any progress, and a reader of the output
that has gone. The package shoal.node.client.report reads metrics.jsonl.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any

from shoal.node.api.answers import Answer
from shoal.node.base.lines import LineWriter
from shoal.node.base.pools import NOTES
from shoal.node.client.report.story import Ledger, is_replica
from shoal.node.client.up.display import LineDisplay
from shoal.node.client.up.peers import LocalPeer
from shoal.node.run.records import why_lapsed
from shoal.protocol.base.errors import LocalError, ShoalError
from shoal.protocol.base.ids import short
from shoal.protocol.base.shortages import in_words

# -- metrics.jsonl -------------------------------------------------------------------------------------------------


FLUSH_WITHIN = 30.0  # seconds


class Metrics:
    """metrics.jsonl: one JSON object per line, each with `time` (seconds since 1970) and `kind`.

    A thread writes, so that a slow disk does not delay the play. Lines that it could not write are counted in a line of
    kind `lost`.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("ab", buffering=0)
        self._writer = LineWriter(self._file.fileno(), lambda count, reason: _line("lost", count=count, reason=reason))

    def write(self, kind: str, **fields: Any) -> None:
        """Append one line."""
        self._writer.write(_line(kind, **fields))

    async def settle(self) -> str:
        """Wait until all lines are in the file, for FLUSH_WITHIN at most; why they are not, or empty if they are."""
        await NOTES.run(self._writer.flush, FLUSH_WITHIN)
        if self._writer.failure is not None:
            return f"{self._path} lacks its end: {in_words(self._writer.failure)}"
        return (
            f"{self._path} lacks its end, which the disk has not taken in {FLUSH_WITHIN:.0f} s" * self._writer.is_behind
        )

    def __enter__(self) -> Metrics:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._writer.flush()
        if not self._writer.is_behind:  # otherwise the thread still writes to it until the process ends
            self._file.close()


def _line(kind: str, **fields: Any) -> str:
    return json.dumps({"time": round(time.time(), 3), "kind": kind, **fields})


# -- the peers -----------------------------------------------------------------------------------------------------


POLL = 0.4  # seconds between two looks at a peer
SAMPLE = 2.0  # seconds between two progress lines of a peer in metrics.jsonl
UNSETTLED = 16  # of the last rounds, whose records may still change: a peer may send bytes for a round after its commit
STALLED = 180.0  # seconds in which no peer's round, phase or step changes
SAMPLED = ("round", "phase", "step", "loss", "tokens_per_second", "bytes_sent", "bytes_received", "samples")


class Unread(Exception):
    """The reader of the output has closed it (a broken pipe)."""

    def __init__(self) -> None:
        super().__init__("nobody reads what it says any more")


class Swarm:
    """The peers of one play, in the order in which they were started.

    `is_unread` tells whether the reader of the output has closed it.
    """

    def __init__(self, metrics: Metrics, display: LineDisplay, is_unread: Callable[[], bool]) -> None:
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
        """The peers whose process runs."""
        return [peer for peer in self.peers if peer.alive]

    @property
    def round(self) -> int:
        """The last round that any live peer has applied."""
        return max((peer.round for peer in self.live), default=0)

    def note(self, event: str, text: str, **fields: Any) -> None:
        """Write an event to metrics.jsonl, and show its text."""
        self._metrics.write("event", event=event, text=text, **fields)
        self.say(text)

    def say(self, text: str) -> None:
        """Show a line, without writing it to metrics.jsonl; Unread if the output is closed."""
        if self._is_unread():
            raise Unread
        self._display.say(text)

    def waiting(self, what: str) -> AbstractContextManager[None]:
        """While the context is open, show that this is waited for."""
        return self._display.waiting(what)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until `condition` is true; it is checked whenever a peer was observed."""
        async with self._changed:
            await self._changed.wait_for(condition)

    async def watch(self, peer: LocalPeer) -> None:
        """Observe a peer until it dies; LocalError if that was not planned."""
        sampled = 0.0
        while peer.alive:
            before = _position(peer)
            await self._observe(peer)
            if _position(peer) != before:
                self._moved_at = time.monotonic()
            if peer.row and time.monotonic() - sampled > SAMPLE:
                sampled = time.monotonic()
                self._metrics.write("progress", peer=peer.name, **{key: peer.row.get(key) for key in SAMPLED})
            await self._show()
            await asyncio.sleep(POLL)
        self._note_death(peer)
        await self._show()

    async def guard(self) -> None:
        """LocalError once there was no progress for STALLED seconds; meant to run beside the watchers."""
        while (rest := self._moved_at + STALLED - time.monotonic()) > 0:
            await asyncio.sleep(rest)
        where = "; ".join(
            f"{peer.name}: {peer.row.get('phase', 'not in the run')} after round {peer.round}"
            + (f", {why}" if (why := peer.row.get("waiting_for")) else "")
            for peer in self.live
        )
        raise LocalError(f"nothing has moved for {STALLED:.0f} s ({where}); see the logs", code="stalled")

    async def collect(self) -> None:
        """Ask every live peer for the records of committed rounds that are not known yet."""
        for peer in self.live:
            await self._collect(peer)

    async def _observe(self, peer: LocalPeer) -> None:
        """Ask a peer for its status; one that cannot answer now (it is dying, or busy) is asked again later.

        LocalError, with the peer's words, if its worker or its run has failed for good.
        """
        try:
            await peer.observe(self.run)
            if peer.round > peer.collected:
                await self._collect(peer)
        except ShoalError:
            return
        lost, branch = (str(peer.row.get(key) or "") for key in ("worker_lost", "branch_event"))
        self._note_once(peer, "worker-lost", lost, f"{peer.name}: {lost}")
        self._note_once(peer, "branch", branch, f"{peer.name}: {branch}")
        if why := peer.row.get("worker_failure"):
            raise LocalError(f"{peer.name} cannot train: {why} (its log is {peer.log})", code="worker-failed")
        self._check_failure(peer)

    def _check_failure(self, peer: LocalPeer) -> None:
        """LocalError if the run has failed on this peer for good; a failure that it will retry is noted once."""
        why = str(peer.row.get("failure") or "")
        if why and not peer.row.get("may_be_opened_again"):
            raise LocalError(f"the run has failed on {peer.name}: {why} (its log is {peer.log})", code="run-failed")
        self._note_once(peer, "failing", why, f"the run fails on {peer.name}, which tries again: {why}")

    def _note_once(self, peer: LocalPeer, event: str, words: str, text: str) -> None:
        """Note that a peer's status says `words` of an event, if they are not empty: once while they stay the same."""
        before, peer.told[event] = peer.told.get(event, ""), words
        if words not in ("", before):
            self.note(event, text, peer=peer.name)

    async def _collect(self, peer: LocalPeer) -> None:
        """Ask for new records, and for those whose bytes may have grown."""
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
                    f"{each.seconds:.1f} s, history {each.digest[:8]}"
                )

    def _note_death(self, peer: LocalPeer) -> None:
        """LocalError if the death was not planned."""
        assert peer.child is not None
        code, report = peer.child.code(), peer.fault_report()
        if report is None or not peer.armed:
            raise LocalError(
                f"{peer.name} died unexpectedly (exit status {code}); {peer.last_words()}", code="node-failed"
            )
        peer.gone = True
        self.note("killed", f"{peer.name} was killed with SIGKILL: {report}", peer=peer.name, exit_status=code)

    async def _show(self) -> None:
        self._display.show(self.peers)
        async with self._changed:
            self._changed.notify_all()


def _own_round(peer: str, record: Answer) -> str:
    """A line about a round of one replica."""
    if record["partner"] is None:
        return f"{peer}, round {record['round']}: no exchange, as {why_lapsed(record['lapse'])}"
    return f"{peer}, round {record['round']}: exchanged with {short(record['partner'])} in {record['seconds']:.1f} s"


def _position(peer: LocalPeer) -> tuple[Any, ...]:
    return tuple(peer.row.get(key) for key in ("round", "phase", "step", "members"))
