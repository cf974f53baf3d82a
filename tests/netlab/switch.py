"""The internet of a lab: a process that carries IP packets between the TUN devices of machines, each at its time.

- A packet goes through the sender's lane up and the receiver's lane down (links.py), to the machine with its
  destination address. A packet to an unknown address, or across a cut, is lost.
- Orders come over a socket, one JSON object per packet, and each gets one answer; `attach` passes a TUN along. When the
  socket is closed the lab's owner has ended, however it died: then the lab's namespaces are removed.
- If this process is held up, a packet is late by that time and no more: its next stage counts from when it was due.
"""

from __future__ import annotations

import heapq
import json
import os
import select
import signal
import socket
import sys
from collections.abc import Iterable
from contextlib import suppress
from random import Random
from time import monotonic
from typing import Any

from tests.netlab.links import Lane, Link, lanes
from tests.netlab.namespaces import remains, remove

LARGEST = 1 << 16
BURST = 64  # packets that are read from one device before the next one's turn
URGENT = -10  # so that the network goes on while its users compute


class Port:
    """A machine's TUN device, and its link."""

    up: Lane
    down: Lane

    def __init__(self, tun: int, link: Link, random: Random) -> None:
        self.tun = tun
        self.barred: set[Port] = set()  # ports that get none of its packets
        self.lay(link, random)

    def lay(self, link: Link, random: Random) -> None:
        """Change the link; packets on their way arrive as they would have."""
        self.up, self.down = lanes(link, random)

    def write(self, packet: bytes) -> None:
        with suppress(OSError):  # its machine has put the interface down
            os.write(self.tun, packet)


class Switch:
    """The addresses of all ports, and the packets on their way."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._ports: dict[int, Port] = {}  # by their TUN devices
        self._where: dict[bytes, Port] = {}
        self._due: list[tuple[float, int, bool, Port, bytes]] = []
        self._serial = 0

    # -- orders ---------------------------------------------------------------------------------------------

    def do(self, order: dict[str, Any], tuns: list[int]) -> Any:
        """Carry out one order."""
        match order:
            case {"do": "attach", "addresses": addresses, "link": link}:
                port = self._ports[tuns[0]] = Port(tuns[0], Link(**link), self._random)
                self._where |= dict.fromkeys(map(packed, addresses), port)
            case {"do": "also", "address": address, "other": other}:
                self._where[packed(other)] = self._at(address)
            case {"do": "lay", "address": address, "link": link}:
                self._at(address).lay(Link(**link), self._random)
            case {"do": "cut", "between": [ones, others]}:
                self._cut([self._at(each) for each in ones], [self._at(each) for each in others])
            case {"do": "mend"}:
                for port in self._ports.values():
                    port.barred.clear()
            case {"do": "count", "address": address}:
                port = self._at(address)
                return [[lane.carried, lane.lost, lane.dropped] for lane in (port.up, port.down)]
            case _:
                raise ValueError(f"no such order: {order}")
        return None

    def _at(self, address: str) -> Port:
        return self._where[packed(address)]

    def _cut(self, ones: Iterable[Port], others: Iterable[Port]) -> None:
        others = list(others)
        for one in ones:
            one.barred.update(others)
            for other in others:
                other.barred.add(one)

    # -- packets --------------------------------------------------------------------------------------------

    @property
    def tuns(self) -> Iterable[int]:
        return self._ports

    def wait(self) -> float | None:
        """Seconds until something is due; None if nothing is."""
        return max(0.0, self._due[0][0] - monotonic()) if self._due else None

    def take(self, tun: int) -> None:
        """Read the packets that a device sends."""
        source = self._ports[tun]
        try:
            for _ in range(BURST):
                self._enter(source, os.read(tun, LARGEST))
        except BlockingIOError:
            return
        except OSError:  # the device is gone, and its machine with it
            del self._ports[tun]
            os.close(tun)

    def _enter(self, source: Port, packet: bytes) -> None:
        goal = self._where.get(packet[16:20] if packet[0] >> 4 == 4 else packet[24:40])
        if goal is None or goal in source.barred:
            return
        now = monotonic()
        when = source.up.enter(now, len(packet))
        if when is not None:
            self._at_time(when, now, False, goal, packet)

    def _at_time(self, when: float, now: float, is_last: bool, goal: Port, packet: bytes) -> None:
        if when > now:
            self._serial += 1
            heapq.heappush(self._due, (when, self._serial, is_last, goal, packet))
        elif is_last:
            goal.write(packet)
        else:
            self._arrive(when, now, goal, packet)

    def _arrive(self, when: float, now: float, goal: Port, packet: bytes) -> None:
        out = goal.down.enter(when, len(packet))
        if out is not None:
            self._at_time(out, now, True, goal, packet)

    def deliver(self) -> None:
        """Move on all packets that are due."""
        now = monotonic()
        while self._due and self._due[0][0] <= now:
            when, _, is_last, goal, packet = heapq.heappop(self._due)
            if is_last:
                goal.write(packet)
            else:
                self._arrive(when, now, goal, packet)


def packed(address: str) -> bytes:
    """An address as packets contain it."""
    return socket.inet_pton(socket.AF_INET6 if ":" in address else socket.AF_INET, address)


def answer(switch: Switch, control: socket.socket) -> bool:
    """Carry out the next order; False if no more will come."""
    words, tuns, _, _ = socket.recv_fds(control, LARGEST, 1)
    if not words:
        return False
    try:
        said = {"answer": switch.do(json.loads(words), tuns)}
    except (KeyError, ValueError, TypeError, OSError) as error:
        said = {"error": repr(error)}
    control.send(json.dumps(said).encode())
    return True


def serve(control: socket.socket, seed: int) -> None:
    """Carry packets until the lab's owner is gone."""
    switch = Switch(seed)
    while True:
        # epoll counts milliseconds, select microseconds.
        ready, _, _ = select.select([control.fileno(), *switch.tuns], (), (), switch.wait())
        for each in ready:
            if each != control.fileno():
                switch.take(each)
            elif not answer(switch, control):
                return
            switch.deliver()
        switch.deliver()


def main(control: str, lab: str, seed: str) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is meant for the owner
    with suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, URGENT)
    try:
        with socket.socket(fileno=int(control)) as line:
            serve(line, int(seed))
    finally:
        remove(remains(lab))


if __name__ == "__main__":
    main(*sys.argv[1:])
