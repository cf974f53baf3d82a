"""A real node as a relay under abuse: it keeps its limits, and serves others meanwhile.

One host asks for 1,000 circuits under eight names, most of which lead to nobody who answers, or says anything; another
sends what it can of 10 GB under one. What is measured is the relay's own word (`relaying` and `memory` in its status),
and how long a word takes from one of two others to the other, who can only meet by that relay.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from shoal.node.client.up.processes import Children
from shoal.protocol.net.circuit.accounts import LIMITS, MIB
from tests.integration.nodes import until
from tests.netlab.lab import Lab
from tests.netlab.links import Link
from tests.netlab.nodes import LabNode
from tests.netlab.places import settle
from tests.netlab.test_paths import Remote, remote

ABUSER = Path(__file__).with_name("circuit_abuser.py")
FAR = Link(delay=0.01)
ASKED, FLOOD = 1000, 10_000_000_000  # circuits and bytes that are tried
SHORT, LONGER = 6.0, 75.0  # seconds of it
LEAST = MIB  # bytes that the flood brings through in a few seconds
GROWTH = 100 * MIB  # bytes of memory for all of it
SLOWEST = 0.5, 1.5  # seconds more than at rest for half of all words, and for 95 of 100, on a busy machine
LONG = 120.0


@pytest.mark.parametrize("seconds", [SHORT, pytest.param(LONGER, marks=[pytest.mark.slow, pytest.mark.patient])])
def test_a_relay_under_abuse_keeps_its_limits_and_serves_others(
    lab: Lab, children: Children, tmp_path: Path, seconds: float
) -> None:
    relay = public_relay(lab, children, tmp_path)
    name, door = relay.name(), relay.door
    with ExitStack() as stack:
        crowd, silent, flood, sink, one, other = (
            stack.enter_context(remote(settle(lab.internet, *place), tmp_path, *script))
            for place, script in (
                (("public", "crowd", FAR), (ABUSER, "never")),
                (("public", "silent", FAR), (ABUSER, "nothing")),
                (("public", "flood", FAR), (ABUSER, "usual")),
                (("public", "sink", FAR), (ABUSER, "usual")),
                (("home-symmetric", "one", FAR), ()),
                (("home-symmetric", "other", FAR), ()),
            )
        )
        for each in (one, other):
            each.ask(relays=[[name, door]])
        one.ask(reach=[other.peer, *other.circuits])
        names = {each: each.ask(reserve=[name, door])["names"] for each in (crowd, silent, flood, sink)}
        before = relay.status()
        rest = talk(one, other, 3.0)
        target = names[sink][0]
        floods = {"flood": [target, f"{door}/p2p/{name}/p2p-circuit", FLOOD, seconds]}
        crowds = {"crowd": [name, [*names[crowd], *names[silent]], ASKED]}
        begin = time.monotonic()
        with asking(flood, **floods) as flooded, asking(crowd, **crowds) as crowded:
            seen, trips = watch(relay, one, other, seconds)
        took = time.monotonic() - begin
        carried = relay.status()["relaying"]["carried_bytes"] - before["relaying"]["carried_bytes"]
        answers, sent = crowded()["answers"], flooded()["sent"]
        most = max(each["relaying"]["circuits"] for each in seen)
        growth = max(each["memory"] for each in seen) - before["memory"]
        print(f"\n{answers}, {most} circuits at most; {carried / 1e6:.0f} of {sent / 1e6:.0f} MB in {took:.0f} s")
        print(f"memory {growth / MIB:+.0f} MiB; words take {describe(rest)} at rest, and {describe(trips)} meanwhile")
        assert sum(answers.values()) == ASKED
        assert most <= LIMITS.circuits_of_host + 2
        burst, rate = LIMITS.rate_of_peer
        assert LEAST < carried < burst + rate * took + 4 * MIB
        if seconds == LONGER:
            assert carried > burst + rate * took / 4, "it went on for all that time"
        assert growth < GROWTH
        for part, more in zip((0.5, 0.95), SLOWEST, strict=True):
            assert quantile(trips, part) < quantile(rest, part) + more


def public_relay(lab: Lab, children: Children, folder: Path) -> LabNode:
    """A node that others have found can be dialled."""
    relay, friend = (LabNode(lab.internet.host(label, link=FAR), folder / label) for label in ("relay", "friend"))
    friend.start(children)
    relay.start(children, bootstrap=(friend.door,))
    until(lambda: relay.status().get("reachability") == "public", "a relay", relay.words, LONG)
    return relay


def watch(relay: LabNode, one: Remote, other: Remote, seconds: float) -> tuple[list[Any], list[float]]:
    """Watch the relay's status, and how long messages take, for some seconds."""
    seen, trips = [relay.status()], list[float]()
    begin = time.monotonic()
    while time.monotonic() < begin + seconds:
        trips += talk(one, other, 1.0)
        seen.append(relay.status())
    return [each for each in seen if each], trips


def talk(one: Remote, other: Remote, seconds: float) -> list[float]:
    answer = one.ask(words=[other.peer, int(seconds / 0.1)])
    assert answer["path"] == "relayed"
    return list(answer["trips"])


def describe(trips: list[float]) -> str:
    half, most = (quantile(trips, part) * 1e3 for part in (0.5, 0.95))
    return f"{half:.0f} ms ({most:.0f} for 95 of 100, {max(trips) * 1e3:.0f} at most, of {len(trips)})"


def quantile(trips: list[float], part: float) -> float:
    return sorted(trips)[int(len(trips) * part)]


class asking:
    """Ask beside all else; the answer is there when the block is left."""

    def __init__(self, whom: Remote, **question: Any) -> None:
        self._answer: dict[str, Any] = {}
        self._thread = threading.Thread(target=lambda: self._answer.update(whom.ask(**question)))

    def __enter__(self) -> Callable[[], dict[str, Any]]:
        self._thread.start()
        return lambda: self._answer

    def __exit__(self, *error: object) -> None:
        self._thread.join()
