"""A run of real daemons that is struck again and again, in the order of a schedule.

Each peer is a machine of the lab with a small disk of its own. One turn of the schedule follows the other once all
peers take part again; who does not in time fails the play. Meanwhile every peer is asked every second how it does.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from shoal.node.api.client import Client
from shoal.node.base.fork_server import ForkServer
from shoal.node.client.up.processes import ONE_THREAD, Children
from tests.integration.nodes import until
from tests.netlab.disks import mounted
from tests.netlab.lab import Lab
from tests.netlab.nodes import LabNode
from tests.netlab.schedule import Event, Turn
from tests.netlab.sightings import Answers, Pause, Sightings

MANIFEST = """
name = "soak"
[model]
dim = 64
layers = 2
heads = 4
kv_heads = 2
hidden = 128
context = 64
[method]
inner_steps = 20
batch = 4
[rounds]
min_members = 2
start_members = {peers}
chunk_bytes = 32768
"""
FORKING = (sys.executable, "-P", "-m", "shoal.node.client.up.forking")
BACK = 120.0  # seconds until a peer takes part again, on a busy machine
LOOK = 1.0  # seconds between two looks at all peers
LAST = 20  # rounds that a look asks for
THREADS = 16  # enough for all peers to be asked while two events are under way


class Peer:
    """A machine with a small disk and a node, and whether that is meant to be a member.

    A fork server of the machine starts the node again and again: nothing has to be imported anew.
    """

    def __init__(self, number: int, lab: Lab, folder: Path) -> None:
        self.name = f"n{number}"
        self.is_member = True
        host = lab.internet.host(self.name)
        with ExitStack() as stack:
            self.disk = stack.enter_context(mounted(folder / self.name / "home"))
            forking = ForkServer(host.argv(*FORKING), {**os.environ, **ONE_THREAD})
            self._children = stack.enter_context(Children(grace=0.0, server=stack.enter_context(forking)))
            self.node = LabNode(host, folder / self.name)
            self.close = stack.pop_all().close

    def start(self, **settings: Any) -> None:
        """Start its node."""
        self.node.start(self._children, mdns=False, **settings)

    def kill(self) -> None:
        """SIGKILL for its node and the node's worker."""
        assert self.node.child is not None
        self.node.child.kill()

    def stop(self) -> None:
        """Stop its node in order, and wait until it has ended."""
        self.have(lambda client: client.stop())
        until(lambda: self.node.child is None or self.node.child.code() is not None, f"the end of {self.name}",
              self.node.words, BACK)  # fmt: skip

    def have(self, what: Callable[[Client], Any]) -> Any:
        """Ask its node until it answers: it may be starting."""
        answer = None

        def is_answered() -> bool:
            nonlocal answer
            answer = self.node.ask(what)
            return answer is not None

        until(is_answered, f"an answer of {self.name}", self.node.words, BACK)
        return answer


class Soak:
    """The run, its peers, and the list of what has befallen them."""

    def __init__(self, lab: Lab, stack: ExitStack, folder: Path, count: int) -> None:
        """What is started here ends with `stack`."""
        self._lab, self._stack, self._folder = lab, stack, folder
        self.peers: list[Peer] = []
        self.seen = Sightings()
        self._events: list[tuple[float, str]] = []
        self._pool = stack.enter_context(ThreadPoolExecutor(THREADS))
        manifest = folder / "soak.toml"
        manifest.write_text(MANIFEST.format(peers=count))
        founder = self._add()
        founder.start(create=manifest)
        self._run = founder.node.run()
        for _ in range(1, count):
            self._add().start(bootstrap=(founder.node.door,), join=(self._run,))
        until(lambda: all(self._takes_part(peer, 0) for peer in self.peers), "a round of all", self.words, BACK)
        self._began = time.time()

    @property
    def members(self) -> list[Peer]:
        """The peers that are meant to be members now."""
        return [peer for peer in self.peers if peer.is_member]

    def play(self, schedule: Iterator[Turn], seconds: float) -> None:
        """Let the schedule befall the run for so long."""
        while time.time() < self._began + seconds:
            turn = next(schedule)
            under_way = [self._pool.submit(self._befall, event) for event in turn.events]
            self._watch(lambda: all(map(Future.done, under_way)))  # noqa: B023
            for each in under_way:
                each.result()
            over = time.time() + turn.rest
            self._watch(lambda: time.time() >= over)  # noqa: B023

    def settle(self) -> int:
        """Wait until all members have been in the same further round; its number."""
        goal, late = self.seen.newest + 2, time.time() + BACK
        self._watch(lambda: all(self._takes_part(peer, goal) for peer in self.members) or time.time() > late)
        assert time.time() < late, f"round {goal} is not one of all members\n{self.words()}"
        return goal

    # -- what befalls them --------------------------------------------------------------------------------------

    def _befall(self, event: Event) -> None:
        """Have it happen, wait until it is over, and then until the peers take part again."""
        self._note(str(event))
        with self._happening(event):
            time.sleep(event.seconds)
            before = self.seen.newest
        healed = time.time()
        for peer in (self.peers[number] for number in event.peers):
            if peer.is_member:
                until(lambda: self._takes_part(peer, before + 1), f"{peer.name} to be back", self.words, BACK)  # noqa: B023
        self._note(f"{event}: over; they take part again after {time.time() - healed:.1f} s")

    @contextmanager
    def _happening(self, event: Event) -> Iterator[None]:
        peers = [self.peers[number] for number in event.peers if number < len(self.peers)]
        match event.kind, peers:
            case "kill", [peer]:
                peer.kill()
                yield
                peer.start()
            case "stop", [peer]:
                peer.stop()
                yield
                peer.start()
            case "pause", [peer]:
                peer.have(lambda client: client.pause(None))
                yield
                peer.have(lambda client: client.resume())
            case "full disk", [peer]:
                with peer.disk.filled():
                    yield
            case "cut", _:
                inside = [peer.node.host for peer in peers]
                self._lab.internet.cut(inside, [peer.node.host for peer in self.members if peer not in peers])
                yield
                self._lab.internet.mend()
            case "join", []:
                link = self.members[0].have(lambda client: client.run_link(self._run))["link"]
                self._add().start(join=(link,))
                yield
            case "leave", [peer]:
                peer.is_member = False
                peer.have(lambda client: client.leave_run(self._run))
                peer.stop()
                peer.close()
                yield

    def _add(self) -> Peer:
        peer = Peer(len(self.peers), self._lab, self._folder)
        self._stack.callback(peer.close)
        self.peers.append(peer)
        return peer

    # -- what is seen of them -----------------------------------------------------------------------------------

    def _watch(self, is_over: Callable[[], bool]) -> None:
        """Look at all members every second until it is over."""
        while not is_over():
            begin, members = time.monotonic(), self.members
            statuses = list(filter(None, self._pool.map(self._status, members)))
            names = [peer.name for peer in members]
            self.seen.take(statuses, dict(zip(names, self._pool.map(self._rounds, members), strict=True)))
            time.sleep(max(0.0, LOOK - (time.monotonic() - begin)))

    def _status(self, peer: Peer) -> Answers:
        return dict(peer.node.status())

    def _rounds(self, peer: Peer, last: int = LAST) -> list[Answers]:
        return list(peer.node.ask(lambda client: client.rounds(self._run, last)) or ())

    def _takes_part(self, peer: Peer, round: int) -> bool:
        """Whether it was in the roster of its newest round, which is `round` or a later one."""
        rows = self._rounds(peer, 1)
        return bool(rows) and rows[-1]["took_part"] and rows[-1]["round"] >= round

    # -- the report ---------------------------------------------------------------------------------------------

    def _note(self, words: str) -> None:
        self._events.append((time.time(), words))

    def at(self, pause: Pause) -> str:
        """A pause with the time at which it began."""
        return f"{pause.begin - self._began:7.1f} s  {pause}"

    def report(self, longer_than: float) -> str:
        """The list of events with their times, and of pauses that took more seconds."""
        found = [*self._events, *((pause.begin, str(pause)) for pause in self.seen.pauses(longer_than))]
        return "\n".join(f"{at - self._began:7.1f} s  {words}" for at, words in sorted(found))

    def words(self) -> str:
        """The report, and the end of the log of each member, for a failure."""
        logs = [f"{peer.name} {peer.node.status()}\n{peer.node.words()}" for peer in self.members]
        return "\n".join([self.report(0.0), *logs])
