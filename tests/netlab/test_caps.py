"""Rates that owners set, by the counters of the kernel's interfaces: packets of 1,500 bytes, with headers and answers.

What is asserted is a ratio, within 5 %. A machine that is busy may shift, into the time that is counted or out of it,
what may pass at once after a silence (0.2 s of the rate) and what is on its way (0.26 s of it): so that is ten seconds.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.netlab.lab import Lab
from tests.netlab.links import Link
from tests.netlab.places import settle
from tests.netlab.segments import Host
from tests.netlab.test_paths import Remote, remote

RATE = 1_000_000  # bytes a second
SIZE = 12_500_000  # bytes, to be said and said back
FROM, TO = 1.5, 11.5  # seconds since the beginning, between which is counted
LINE = Link(delay=0.02, rate=100e6)


class Bytes(NamedTuple):
    """Bytes that a machine's interfaces, other than loopback, have carried."""

    received: int
    sent: int


def carried(host: Host) -> Bytes:
    def there() -> Bytes:
        lines = Path("/proc/thread-self/net/dev").read_text().splitlines()[2:]
        rows = [line.split(":")[1].split() for line in lines if line.split(":")[0].strip() != "lo"]
        return Bytes(sum(int(row[0]) for row in rows), sum(int(row[8]) for row in rows))

    return host.on(there)


def speed(host: Host, begin: float) -> Bytes:
    """Bytes a second of a machine, while it is in the middle of something that began then."""
    until(begin + FROM)
    before, since = carried(host), time.monotonic()
    until(begin + TO)
    after, seconds = carried(host), time.monotonic() - since
    return Bytes(*(round((now - then) / seconds) for now, then in zip(after, before, strict=True)))


def until(moment: float) -> None:
    """Time itself is the subject."""
    while (rest := moment - time.monotonic()) > 0:
        time.sleep(rest)


def talk(one: Remote, other: Remote, host: Host) -> Bytes:
    """How fast `host` carries what one says to the other, and what comes back."""
    with ThreadPoolExecutor(1) as aside:
        begin = time.monotonic()
        saying = aside.submit(one.ask, say=[other.peer, SIZE])
        found = speed(host, begin)
        assert not saying.done(), "it was meant to take longer"
        saying.result()
    return found


@pytest.mark.slow
@pytest.mark.parametrize("way", ["up", "down"])
def test_a_rate_holds_at_the_interface(lab: Lab, tmp_path: Path, way: str) -> None:
    with ExitStack() as stack:
        one, other = (
            stack.enter_context(remote(lab.internet.host(name, link=LINE), tmp_path)) for name in ("one", "other")
        )
        one.ask(cap=[RATE, None] if way == "up" else [None, RATE])
        one.ask(reach=[other.peer, other.address])
        found = talk(one, other, one.host)
    rate = found.sent if way == "up" else found.received
    print(f"\n{way}: the interface carried {rate / RATE:.3f} of the rate")
    assert rate == pytest.approx(RATE, rel=0.05)


@pytest.mark.slow
def test_what_a_relay_carries_for_others_counts(lab: Lab, tmp_path: Path) -> None:
    with ExitStack() as stack:
        relay = stack.enter_context(remote(lab.internet.host("relay", link=LINE), tmp_path))
        relay.ask(cap=[RATE, None])
        relay.ask(lend=[relay.address])
        one, other = (
            stack.enter_context(remote(settle(lab.internet, "home-symmetric", name, LINE), tmp_path))
            for name in ("one", "other")
        )
        for each in (one, other):
            each.ask(relays=[[relay.peer, relay.address]])
        one.ask(reach=[other.peer, *other.circuits])
        found = talk(one, other, relay.host)
        assert one.ask(path=other.peer)["path"] == "relayed"
    print(f"\nthe relay's interface sent {found.sent / RATE:.3f} of the rate")
    assert found.sent == pytest.approx(RATE, rel=0.05)
