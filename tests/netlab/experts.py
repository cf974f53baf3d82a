"""A family of experts on machines of a lab: nodes that answer for them, and a real `shoal serve` that asks.

Doors are public nodes in no family: by them all others find each other, and they are relays for who needs one.
"""

from __future__ import annotations

import json
import re
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from shoal.node.client.up.processes import Child, Children
from shoal.node.manifest.manifest import parse_manifest
from shoal.protocol.net.system.identity import Identity
from tests.integration.asking_kit import NOTHING, TINY, plant, text_of
from tests.integration.nodes import until
from tests.netlab.lab import Lab
from tests.netlab.links import Link
from tests.netlab.nodes import LabNode
from tests.netlab.places import settle
from tests.netlab.swarms import Resident
from tests.run_kit import NONCE, id_of

ANSWER_LIMIT = 120.0  # seconds until an answer has come whole
RELAYS = 2  # that a member behind a router has before it begins, if there are so many


@dataclass(frozen=True)
class Seat:
    """Where a member stands, and the seeds of the experts that it has, by parts."""

    place: str
    has: Mapping[str, int]


@dataclass(frozen=True)
class Written:
    """The result of one stream."""

    tokens: int
    why: str
    experts: dict[str, float]
    lost: list[str]
    seconds: float


class Family:
    """`front` asks, and has nothing itself; the others have experts, and each a process that answers for all of its."""

    def __init__(
        self,
        lab: Lab,
        children: Children,
        folder: Path,
        seats: Mapping[str, Seat],
        doors: int = 1,
        link: Link | None = None,
    ) -> None:
        self._lab, self._children, self._folder, self._link = lab, children, folder, link
        self._seats = seats
        self.doors: list[Resident] = []
        for number in range(doors):
            self.doors.append(self._start(self._place(f"door{number}", "public")))
        self.members = {name: self._place(name, seat.place) for name, seat in seats.items()}
        self.answering: dict[str, Child] = {}
        self._url = ""

    @property
    def front(self) -> LabNode:
        """The node of who asks."""
        return self.members["front"].node

    def begin(self) -> None:
        """Start all nodes, let them enter the family, and let those with experts answer for them."""
        text = text_of(TINY, *sorted({part for seat in self._seats.values() for part in seat.has}))
        manifest = parse_manifest(text)
        family = id_of(manifest, Identity.load_or_create(self.front.home.create().identity_key).peer)
        for name, member in self.members.items():
            for part, seed in self._seats[name].has.items():
                plant(member.node.home, manifest, family, part, seed)
            self._start(member)
        self.until(lambda: all(map(self._is_settled, self.members)), "all to know how they are reached")
        made = self.front.ask(lambda client: client.create_run(text, False, (), NONCE.hex()))
        for name in self.members:
            self.until(partial(self._is_in, name, made["link"]), f"{name} to be in the family")
        for name, seat in self._seats.items():
            if seat.has:
                self.answer(name)

    def answer(self, name: str) -> None:
        """Start a process that answers for all experts of a member."""
        self.answering[name] = self._run(name, "answer.log", "experts", "answer", "fam", "--device", "cpu")

    def see(self, **counts: int) -> None:
        """Wait until the front knows of so many peers that answer for each part."""
        self.until(lambda: are_answered(self.front, counts), f"{counts} to be seen")

    def serve(self, *flags: str) -> None:
        """Start the server, and wait until it listens."""
        log = self._folder / "front" / "serve.log"
        self._run("front", log.name, "serve", "fam", "--port", "0", "--threads", "1", "--prefer", "peers", *flags)
        self.until(lambda: re.search(r"http://\S+", log.read_text()), "the server")
        found = re.search(r"http://\S+", log.read_text())
        assert found is not None
        self._url = found[0]

    # -- what is asked of the server --------------------------------------------------------------------------

    def about(self) -> dict[str, Any]:
        """The server's status."""

        def there() -> dict[str, Any]:
            with urllib.request.urlopen(f"{self._url}/models", timeout=30) as answer:
                told: dict[str, Any] = json.load(answer)["data"][0]["shoal"]
            return told

        return self.front.host.on(there)

    def stream(self, length: int, number: int = 0) -> Written:
        """A text of so many tokens, read as it is written."""
        return self.front.host.on(lambda: read_stream(self._url, length, number))

    def streams(self, count: int, length: int, deed: Callable[[], None] = lambda: None) -> list[Written]:
        """Start `count` streams at once; when all are being written, do `deed`. All must be complete."""
        with ThreadPoolExecutor(count) as pool:
            begun: list[Future[Written]] = [pool.submit(self.stream, length, number) for number in range(count)]
            self.until(lambda: self.about()["busy"] == count, "all streams to be written")
            deed()
            assert not any(each.done() for each in begun), "it came too late"
            written = [each.result() for each in begun]
        assert [(each.tokens, each.why) for each in written] == [(length, "length")] * count, self.words()
        return written

    def path(self, name: str) -> str:
        """How the front is connected with a member."""
        return str(self._row(name).get("path") or "")

    def relay_to(self, name: str) -> Resident | None:
        """The door that lives by which the front is connected with a member, if it is by one."""
        relay = self._row(name).get("relay")
        return next((each for each in self.doors if each.node.name() == relay), None)

    def kill_relay_to(self, name: str) -> None:
        """The node by which the front is connected with a member is gone at once."""
        self.until(lambda: self.relay_to(name), f"a relay to {name}")
        relay = self.relay_to(name)
        assert relay is not None
        assert relay.node.child is not None
        self.doors.remove(relay)
        relay.node.child.kill()

    def writer(self, part: str) -> str:
        """A member that writes with an expert, of those that have it."""
        found: dict[str, float] = {}

        def has_been_asked() -> bool:
            [row] = (each for each in self.about()["experts"] if each["name"] == part)
            found.update({each["peer"]: each["milliseconds"] for each in row["peers"] if each["milliseconds"]})
            return bool(found)

        self.until(has_been_asked, f"{part} to be asked")
        asked = max(found, key=lambda peer: found[peer])
        return next(name for name, member in self.members.items() if member.node.name() == asked)

    def cut(self, name: str) -> None:
        """Nothing passes between a member and anybody from now on."""
        internet, outside = self._lab.internet, self.members[name].outside
        internet.cut([outside], [each for each in internet.members if each is not outside])

    def _row(self, name: str) -> dict[str, Any]:
        peer = self.members[name].node.name()
        rows = self.front.ask(lambda client: client.peers()) or ()
        return next((row for row in rows if row["peer"] == peer), {})

    # -- inside -----------------------------------------------------------------------------------------------

    def until(self, condition: Callable[[], Any], what: str) -> float:
        return until(condition, what, self.words)

    def words(self) -> str:
        """The logs of all, for a failure."""
        texts = []
        for each in [*self.doors, *self.members.values()]:
            texts.append(f"== {each} {each.node.status()}\n{each.node.words()}")
        for name in self.members:
            logs = [self._folder / name / f"{kind}.log" for kind in ("answer", "serve")]
            texts += [f"== {log.name} of {name}\n{log.read_text()[-3000:]}" for log in logs if log.exists()]
        return "\n".join(texts)

    def _place(self, name: str, place: str) -> Resident:
        host = settle(self._lab.internet, place, name, self._link)
        return Resident(LabNode(host, self._folder / name), self._lab.internet.members[-1])

    def _start(self, resident: Resident) -> Resident:
        known = tuple(each.node.door for each in self.doors)
        resident.node.start(self._children, bootstrap=known, mdns=False, data_limit=NOTHING)
        return resident

    def _is_settled(self, name: str) -> bool:
        status = self.members[name].node.status()
        if self._seats[name].place == "public":
            return bool(status.get("reachability") == "public")
        return len(status.get("relays", ())) >= min(RELAYS, len(self.doors))

    def _is_in(self, name: str, link: str) -> bool:
        node = self.members[name].node
        return node is self.front or node.ask(lambda client: client.join_run(link, False)) is not None

    def _run(self, name: str, log: str, *argv: str) -> Child:
        node = self.members[name].node
        command = node.host.argv(sys.executable, "-m", "shoal.node", *argv)
        environ = {"SHOAL_HOME": str(node.home.root), "OMP_NUM_THREADS": "1"}
        return self._children.start(command, self._folder / name / log, environ)


def read_stream(url: str, length: int, number: int) -> Written:
    """A stream of the server that listens there, in this thread's network."""
    asked = {"model": "fam", "prompt": "x" * (1 + 5 * number), "max_tokens": length, "seed": number, "stream": True,
             "ignore_eos": True, "stream_options": {"include_usage": True}}  # fmt: skip
    request = urllib.request.Request(
        f"{url}/completions", json.dumps(asked).encode(), {"Content-Type": "application/json"}
    )
    begin = time.monotonic()
    with urllib.request.urlopen(request, timeout=ANSWER_LIMIT) as answer:
        lines = [line[6:] for line in answer if line.startswith(b"data: ")]
    assert lines[-1].strip() == b"[DONE]", lines[-1]
    *_, last, usage = map(json.loads, lines[:-1])
    [choice] = last["choices"]
    said = choice["shoal"]
    took = time.monotonic() - begin
    return Written(usage["usage"]["completion_tokens"], choice["finish_reason"], said["experts"], said["lost"], took)


def are_answered(node: LabNode, counts: Mapping[str, int]) -> bool:
    """Whether a node knows of so many peers that answer for each part."""
    told = node.ask(lambda client: client.expert_sources("fam")) or {"parts": ()}
    parts = {each["part"]: each["files"] for each in told["parts"]}
    return all(any(len(file["peers"]) >= count for file in parts.get(part, ())) for part, count in counts.items())
