"""Every place and every other: how two peers come together, and how soon."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.netlab.lab import Lab
from tests.netlab.links import Link
from tests.netlab.places import PLACES, settle
from tests.netlab.segments import Host

SCRIPT = Path(__file__).with_name("circuit_peer.py")
PATIENCE, PUNCHED = 40.0, 3.0  # seconds for what should come; and for what should not
FAR = Link(delay=0.01)


class Remote:
    """A peer on a machine of the lab, see circuit_peer.py."""

    def __init__(self, host: Host, process: subprocess.Popen[str], log: Path) -> None:
        self.address = f"/ip4/{host.address}/tcp/4101"
        self.circuits: list[str] = []
        self._process, self._log = process, log

    @cached_property
    def peer(self) -> str:
        """The first that it says: whoever asks waits until it is there."""
        return str(self._hear()["peer"])

    def ask(self, **question: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
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
def remote(host: Host, folder: Path, label: str, script: Path = SCRIPT, *arguments: str) -> Iterator[Remote]:
    log = folder / f"{label}.log"
    argv = host.argv(sys.executable, "-P", str(script), *arguments)
    with (
        log.open("w") as words,
        subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=words, text=True) as process,
    ):
        try:
            yield Remote(host, process, log)
        finally:
            process.kill()


DIRECT, RELAYED = "direct", "relayed"
KEEPING = ("home-drop", "home-reject", "home-double", "blocked")  # the same place for all whom they dial
ROUTERS = dict.fromkeys(KEEPING, "keeping") | {"public": "public", "home-symmetric": "symmetric", "blocked": "public"}


def expected(one: str, other: str) -> str:
    """Written by hand: who gives each destination another place can be met by nobody who cannot be dialled."""
    if "public" in (one, other):
        return DIRECT
    return RELAYED if "home-symmetric" in (one, other) else DIRECT


@pytest.mark.slow
def test_every_place_and_every_other(lab: Lab, tmp_path: Path) -> None:
    """Who dials, who is called, the path at last; milliseconds to the first byte, and to the best path.

    On a quiet machine a second or two; how many are for docs/nat.md to say, as a busy one may take as long as it likes.
    """
    with ExitStack() as stack:
        relays = [stack.enter_context(remote(lab.internet.host(f"relay{n}"), tmp_path, f"relay{n}")) for n in range(2)]
        callers, called = (
            {p: stack.enter_context(remote(settle(lab.internet, p, p + side, FAR), tmp_path, p + side)) for p in PLACES}
            for side in ("-a", "-b")
        )
        for each in relays:
            each.ask(lend=[each.address])
        for place, each in [*callers.items(), *called.items()]:
            assert each.ask(relays=[[each.peer, each.address] for each in relays])["kind"] == ROUTERS[place]
        print(f"\n{'dials':<16}{'is called':<16}{'at last':<10}{'first byte':>12}{'best path':>12}")
        for one, other in product(PLACES, PLACES):
            come = come_together(callers[one], called[other], expected(one, other))
            print(f"{one:<16}{other:<16}{come.path:<10}{come.first:>9.0f} ms{come.best:>9.0f} ms", flush=True)
            assert come.path == expected(one, other), callers[one].words() + called[other].words()
            callers[one].ask(leave=called[other].peer)


class Come(NamedTuple):
    """How two came together: milliseconds to the first byte and to the best path, and that path."""

    first: float
    best: float
    path: str


def come_together(caller: Remote, called: Remote, wanted: str) -> Come:
    """A direct path that should not come is waited for, too."""
    begin = time.monotonic()
    first = 1000 * caller.ask(reach=[called.peer, called.address, *called.circuits])["first_byte"]
    while True:
        path = caller.ask(path=called.peer)["path"]
        took = time.monotonic() - begin
        if path == DIRECT or took > (PUNCHED if wanted == RELAYED else PATIENCE):
            return Come(first, 1000 * took if path == DIRECT else first, path)
        time.sleep(0.02)
