"""Every place and every other: what `netcheck` foretells, how two peers come together then, and how soon.

Each cell of the table is told four times, and all must agree:
- by hand (EXPECTED);
- by netcheck's forecast, from what the peers of each place find out alone, saved before any other peer exists;
- by both ends of the connection that comes of it;
- by the counters of the caller's router, as a payload goes to the other and back.

The six cells of a round go side by side, so that no peer is in two of them.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import cached_property
from itertools import product
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

from shoal.node.api.answers import Answer
from shoal.node.daemon.diagnostics.node_checks import Facts, report
from shoal.protocol.base.ids import PeerId
from shoal.protocol.base.paths import RELAYED
from shoal.protocol.net.circuit.nat import Situation, forecast
from tests.netlab.lab import Lab
from tests.netlab.links import Link
from tests.netlab.places import PLACES, settle
from tests.netlab.segments import Host

SCRIPT = Path(__file__).with_name("circuit_peer.py")
FAR = Link(delay=0.01)
IN_VAIN = 3.0  # seconds for what should not come
GOAL_BYTE, GOAL_PUNCHED = 5.0, 3.0  # seconds: what we want on a quiet machine
MOST = 15.0  # seconds on a busy one
PAYLOAD = 200_000  # bytes, each way
HINTS = 0.25  # of the payload: more than all that is said beside it

EXPECTED_TABLE = """
                public  blocked  home-drop  home-reject  home-symmetric  home-double
public          direct  direct   direct     direct       direct          direct
blocked         direct  punched  punched    punched      relayed         punched
home-drop       direct  punched  punched    punched      relayed         punched
home-reject     direct  punched  punched    punched      relayed         punched
home-symmetric  direct  relayed  relayed    relayed      relayed         relayed
home-double     direct  punched  punched    punched      relayed         punched
"""
COLUMNS, *ROWS = (line.split() for line in EXPECTED_TABLE.strip().splitlines())
EXPECTED = {(one, other): path for one, *paths in ROWS for other, path in zip(COLUMNS, paths, strict=True)}
ROUTERS = {  # what netcheck calls them
    "public": "public",
    "blocked": "firewall",
    "home-drop": "keeping",
    "home-reject": "keeping",
    "home-symmetric": "symmetric",
    "home-double": "keeping",
}


class Remote:
    """A peer on a machine of the lab, see circuit_peer.py."""

    def __init__(self, host: Host, process: subprocess.Popen[str], log: Path) -> None:
        self.host = host
        self.address, self.outside = (f"/ip4/{each}/tcp/4101" for each in (host.address, host.public))
        self.circuits: list[str] = []
        self._process, self._log = process, log
        self._turn = Lock()

    @cached_property
    def peer(self) -> str:
        """The first that it says: whoever asks waits until it is there."""
        return str(self._hear()["peer"])

    def ask(self, **question: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        with self._turn:
            assert self.peer
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
            answer = self._hear()
        assert "error" not in answer, (answer, self.words())
        self.circuits = answer.get("circuits", self.circuits)
        return answer

    def words(self) -> str:
        return self._log.read_text()[-3000:]

    def _hear(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, self.words()
        answer: dict[str, Any] = json.loads(line)
        return answer


@contextmanager
def remote(host: Host, folder: Path, script: Path = SCRIPT, *arguments: str) -> Iterator[Remote]:
    log = folder / f"{host}.log"
    argv = host.argv(sys.executable, "-P", str(script), *arguments)
    with (
        log.open("w") as words,
        subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=words, text=True) as process,
    ):
        try:
            yield Remote(host, process, log)
        finally:
            process.kill()


class Cell(NamedTuple):
    """How two came together: seconds to the first byte and to the best path, that path, and what routers saw."""

    first: float
    best: float
    path: str
    path_there: str  # as the one that was called sees it
    bytes_from_other: int  # that came in at the caller's router, with the payload
    bytes_from_relays: int


def test_every_place_and_every_other(lab: Lab, tmp_path: Path) -> None:
    """Who dials, who is called, what was foretold, what came, and when; against the goals for a quiet machine."""
    with ExitStack() as stack, ThreadPoolExecutor(len(PLACES)) as side_by_side:
        relays = [stack.enter_context(remote(lab.internet.host(f"relay{n}"), tmp_path)) for n in range(2)]
        for each in relays:
            each.ask(lend=[each.address])

        def settled(side: str) -> tuple[dict[str, Remote], dict[str, Answer]]:
            machines = [settle(lab.internet, place, place + side, FAR) for place in PLACES]
            peers = [stack.enter_context(remote(host, tmp_path)) for host in machines]
            said = side_by_side.map(lambda peer: netcheck(peer, relays), peers)
            return dict(zip(PLACES, peers, strict=True)), dict(zip(PLACES, said, strict=True))

        callers, alone = settled("-a")
        saved = tmp_path / "foretold.json"
        saved.write_text(json.dumps(alone))
        called, theirs = settled("-b")
        cells: dict[tuple[str, str], Cell] = {}
        for pairs in rounds():
            come = side_by_side.map(lambda pair: come_together(callers[pair[0]], called[pair[1]], relays, pair), pairs)
            cells |= dict(zip(pairs, come, strict=True))
    foretold = json.loads(saved.read_text())
    show(cells, foretold)
    for place in PLACES:
        assert foretold[place]["nat"] == ROUTERS[place]
        assert foretold[place]["self"] == theirs[place]["self"], "the other in such a place finds the same"
    for pair, cell in cells.items():
        check(pair, cell, foretold)


def rounds() -> Iterator[list[tuple[str, str]]]:
    """All pairs, in rounds in which each place calls once and is called once; pairs of like places come last."""
    places = [*PLACES]
    for shift in range(1, len(places) + 1):
        yield list(zip(places, [*places[shift:], *places[:shift]], strict=True))


def netcheck(peer: Remote, relays: list[Remote]) -> Answer:
    """The findings of `shoal netcheck` for a peer that knows only relays."""
    found = peer.ask(relays=[[each.peer, each.address] for each in relays])
    dialled = [each.ask(find=[peer.peer, peer.outside]) for each in relays]
    return report(
        Facts(
            own=tuple(found["own"]),
            seen_places=tuple(found["seen"]),
            found_at=(peer.outside,) if dialled[0]["found"] else (),
            peers=len(relays),
            internet_peers=len(relays),
            reachability="public" if all(each["found"] for each in dialled) else "nat",
            mapping=found["mapping"],
            relays=tuple((PeerId(each.peer), None) for each in relays),
        )
    )


def path_foretold(pair: tuple[str, str], said: dict[str, Answer]) -> str:
    one, other = (Situation.from_json(said[place]["self"]) for place in pair)
    return forecast(one, other)


def come_together(caller: Remote, called: Remote, relays: list[Remote], pair: tuple[str, str]) -> Cell:
    """A better path that should not come is waited for, too."""
    begin = time.monotonic()
    first = caller.ask(reach=[called.peer, called.address, *called.circuits])["first_byte"]
    limit = IN_VAIN if EXPECTED[pair] == RELAYED else 2 * MOST
    while (path := caller.ask(path=called.peer)["path"]) == RELAYED and time.monotonic() < begin + limit:
        time.sleep(0.02)
    best = first if path == RELAYED else max(first, time.monotonic() - begin)
    before = came_in(caller, called, relays)
    caller.ask(say=[called.peer, PAYLOAD])
    there = called.ask(path=caller.peer)["path"]
    direct, relayed = (now - then for now, then in zip(came_in(caller, called, relays), before, strict=True))
    caller.ask(leave=called.peer)
    return Cell(first, best, path, there, direct, relayed)


def came_in(caller: Remote, called: Remote, relays: list[Remote]) -> tuple[int, int]:
    """The bytes that came to the caller's router from the other, and from relays."""
    edge = caller.host.edge
    return (
        edge.received_from(called.host.public).bytes,
        sum(edge.received_from(each.host.public).bytes for each in relays),
    )


def check(pair: tuple[str, str], cell: Cell, said: dict[str, Answer]) -> None:
    """All four sources agree."""
    wanted = EXPECTED[pair]
    assert path_foretold(pair, said) == wanted, f"{pair}: netcheck was wrong"
    assert (cell.path, cell.path_there) == (wanted, wanted), pair
    through, beside = (cell.bytes_from_other, cell.bytes_from_relays)[:: -1 if wanted == RELAYED else 1]
    assert through > PAYLOAD, f"{pair}: the routers saw otherwise"
    assert beside < HINTS * PAYLOAD, f"{pair}: the routers saw otherwise"
    assert cell.best < MOST, pair


def show(cells: dict[tuple[str, str], Cell], said: dict[str, Answer]) -> None:
    """The table; `from it` and `by relays` is where the caller's router had the payload from."""
    names = f"{'dials':<16}{'is called':<16}{'foretold':<10}{'at last':<10}"
    print(f"\n{names}{'from it':>8}{'by relays':>11}{'first byte':>12}{'best path':>12}")
    for pair in product(PLACES, PLACES):
        cell, (one, other) = cells[pair], pair
        names = f"{one:<16}{other:<16}{path_foretold(pair, said):<10}{cell.path:<10}"
        seen = f"{cell.bytes_from_other / 1e3:>5.0f} kB{cell.bytes_from_relays / 1e3:>8.0f} kB"
        print(f"{names}{seen}{1e3 * cell.first:>9.0f} ms{1e3 * cell.best:>9.0f} ms")
    slowest, punched = max(cell.first for cell in cells.values()), cells["home-drop", "home-drop"].best
    print(f"first byte in {slowest:.1f} s at the latest (goal: {GOAL_BYTE:g} s)")
    print(f"two port-keeping routers that drop: punched in {punched:.1f} s (goal: {GOAL_PUNCHED:g} s)")
