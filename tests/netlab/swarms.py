"""Real nodes in one run, at places of all kinds, and their status: for tests of cuts, losses and deaths."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shoal.node.client.up.processes import Children
from tests.integration.test_node import MANIFEST
from tests.netlab.internet import Outside
from tests.netlab.lab import Lab
from tests.netlab.links import Link
from tests.netlab.nodes import LabNode
from tests.netlab.places import settle

GOOD = ("CONNECTED", "IN-ROUND")


@dataclass
class Resident:
    """A node, and what the internet sees of the place where it is."""

    node: LabNode
    outside: Outside

    def __str__(self) -> str:
        return str(self.node.host)


@dataclass
class Diary:
    """The states of some nodes over time: (seconds since some event, state), where a state began."""

    of: dict[str, list[tuple[float, str]]] = field(default_factory=dict)

    def note(self, now: dict[str, str], when: float) -> None:
        """Write down what is new."""
        for who, state in now.items():
            times = self.of.setdefault(who, [])
            if not times or times[-1][1] != state:
                times.append((when, state))

    def first(self, who: str, states: Sequence[str]) -> float:
        """When it was first in one of these."""
        return next(when for when, state in self.of[who] if state in states)

    def last_not(self, who: str, states: Sequence[str]) -> float:
        """When it came into one of these for good."""
        times = self.of[who]
        return next((when for (when, _), (_, before) in zip(times[::-1], times[-2::-1], strict=False)
                     if before not in states), times[0][0])  # fmt: skip

    def words(self) -> str:
        """A line for each node."""
        return "\n".join(
            f"{who:<22}" + "  ".join(f"{when:.1f} s {state or 'no answer'}" for when, state in times)
            for who, times in self.of.items()
        )


class Swarm:
    """A run, and doors: public nodes that are in no run, by which all others find it."""

    def __init__(
        self,
        lab: Lab,
        children: Children,
        folder: Path,
        doors: int,
        link: Link | None = None,
        manifest: str = MANIFEST,
    ) -> None:
        self._lab, self._children, self._folder, self._link = lab, children, folder, link
        self._manifest = folder / "tiny.toml"
        self._manifest.write_text(manifest)
        self.doors: list[Resident] = []
        self.members: list[Resident] = []
        for number in range(doors):
            known = tuple(each.node.door for each in self.doors)
            self.doors.append(self._start("public", f"door{number}", known))

    def join(self, place: str, train: bool = False) -> Resident:
        """A new member there; the first is the founder."""
        label = f"{place}{len(self.members)}"
        founder = self.members[0] if self.members else None
        run: dict[str, Any] = {"create": self._manifest} if founder is None else {"join": (founder.node.run(),)}
        known = tuple(each.node.door for each in self.doors)
        self.members.append(self._start(place, label, known, train=train, **run))
        return self.members[-1]

    def _start(self, place: str, label: str, known: tuple[str, ...], **settings: Any) -> Resident:
        host = settle(self._lab.internet, place, label, self._link)
        node = LabNode(host, self._folder / label)
        node.start(self._children, bootstrap=known, mdns=False, **settings)
        return Resident(node, self._lab.internet.members[-1])

    # -- what they say --------------------------------------------------------------------------------------

    def states(self, of: Iterable[Resident] = ()) -> dict[str, str]:
        """The state of each member, asked side by side; empty where there is no answer."""
        asked = list(of) or self.members
        with ThreadPoolExecutor(len(asked)) as pool:
            return dict(zip(map(str, asked), pool.map(lambda each: each.node.state(), asked), strict=True))

    def watch(self, diary: Diary, begin: float, of: Iterable[Resident] = ()) -> dict[str, str]:
        """The states now, written down where they are new."""
        now = self.states(of)
        diary.note(now, time.monotonic() - begin)
        return now

    def is_whole(self, of: Iterable[Resident] = ()) -> bool:
        """Whether the last round that each of them knows is one of all members, and the same."""
        rounds = [newest(each.node) for each in of or self.members]
        return all(each.get("members") == len(self.members) for each in rounds)

    def paths(self) -> Counter[str]:
        """How members are connected with members, both ends counted."""
        names = {each.node.name() for each in self.members}
        rows = [row for each in self.members for row in each.node.ask(lambda client: client.peers()) or ()]
        return Counter(str(row["path"]) for row in rows if row["peer"] in names)

    def words(self) -> str:
        """The status and the log of each node, for a failure."""
        return "\n".join(f"{each} {each.node.status()}\n{each.node.words()}" for each in self.members)


def newest(node: LabNode) -> dict[str, Any]:
    """The last round that this node knows to be committed."""
    runs = node.status().get("runs") or [{}]
    rounds = node.ask(lambda client: client.rounds(runs[0]["run"], 1)) if "run" in runs[0] else None
    return dict(rounds[-1]) if rounds else {}


def sample(look: Callable[[], Any], until: Callable[[Any], bool], seconds: float, pause: float = 0.5) -> bool:
    """Look again and again until it is so; False if that takes longer."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if until(look()):
            return True
        time.sleep(pause)
    return False
