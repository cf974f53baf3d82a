"""The cost of sending payloads between two processes over loopback: our carrier, compared with plain TCP and TLS.

    python benchmarks/carrier.py [--mib 512] [--passes 5] [--json]

    tcp    one socket, sendall and recv_into, and that is all
    tls    the same through Python's ssl, TLS 1.3
    shoal  a Sender and a Receiver of protocol/net/bulk: encoded heads, sealed payloads of 1 MiB, decoded messages
           handed to the event loop, memory that is used again

GB/s from the first byte until all is received, and processor seconds per GB of both ends together; medians of all
passes, each of which runs all three, so that other load on the machine affects all alike.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import socket
import ssl
import statistics
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection

from shoal.protocol.base.errors import RemoteError
from shoal.protocol.base.ids import Digest, PeerId, RunId
from shoal.protocol.base.wire import Message
from shoal.protocol.messages.averaging import Made, Mean
from shoal.protocol.messages.bulk import Flow
from shoal.protocol.net.bulk.backlog import Backlog, Packed, QueuedPayload
from shoal.protocol.net.bulk.flow_control import Credit, MemoryAccount
from shoal.protocol.net.bulk.framing import packed_head, prefix
from shoal.protocol.net.bulk.handshake import BulkSocket, new_certificate
from shoal.protocol.net.bulk.pacing import Unpaced
from shoal.protocol.net.bulk.posts import Posts
from shoal.protocol.net.bulk.receiver import Receiver
from shoal.protocol.net.bulk.sender import Sender
from shoal.protocol.net.bulk.spare_capacity import PathRtt, SpareCapacity
from shoal.protocol.net.system.throttle import Throttle

MIB = 1 << 20
RUN, KEY, PEER = RunId(b"r" * 32), b"k" * 16, PeerId("peer")
MADE = Made(Digest(b"h" * 32), b"\x01", 0, PEER, 1, b"s" * 64)  # what a mean's owner says of it
CARRIERS = ("tcp", "tls", "shoal")

Work = Callable[[socket.socket, int], None]


@dataclass(frozen=True, slots=True)
class Result:
    """One line of the table."""

    carrier: str
    rate: float  # GB/s
    cpu: float  # seconds per GB, of both ends


def main() -> None:
    """Print a table, or a line of JSON for each carrier."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=512, help="that each pass sends")
    parser.add_argument("--passes", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    passes = [[measure(carrier, options.mib) for carrier in CARRIERS] for _ in range(options.passes)]
    show([median(each) for each in zip(*passes, strict=True)], options.json)


def show(results: list[Result], as_json: bool) -> None:
    """For people, with ratios to plain TCP, or for programs."""
    plain = results[0]
    if not as_json:
        print(f"{'':8}{'GB/s':>8}{'CPU s/GB':>10}{'/ tcp':>8}")
    for each in results:
        if as_json:
            print(json.dumps(asdict(each)))
        else:
            print(f"{each.carrier:8}{each.rate:8.2f}{each.cpu:10.2f}{each.cpu / plain.cpu:8.1f}")


def median(results: tuple[Result, ...]) -> Result:
    """The median of the passes of one carrier."""
    rate, cpu = ([getattr(each, name) for each in results] for name in ("rate", "cpu"))
    return Result(results[0].carrier, statistics.median(rate), statistics.median(cpu))


def measure(carrier: str, mib: int) -> Result:
    """One pass: this process sends, another one receives."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours, theirs = multiprocessing.Pipe()
        process = multiprocessing.get_context("fork").Process(target=receive, args=(carrier, mib, listener, theirs))
        process.start()
        raw = socket.create_connection(listener.getsockname())
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        spent = timed(SENDING[carrier], raw, mib, ours.recv)
        seconds, theirs_spent = ours.recv()
        process.join()
    gigabytes = mib * MIB / 1e9
    return Result(carrier, gigabytes / seconds, (spent + theirs_spent) / gigabytes)


def timed(work: Work, raw: socket.socket, mib: int, go: Callable[[], object]) -> float:
    """Processor seconds of our end, measured from when the other one is ready."""
    go()
    begin = time.process_time()
    work(raw, mib)
    return time.process_time() - begin


def receive(carrier: str, mib: int, listener: socket.socket, report: Connection) -> None:
    """Runs in the receiving process."""
    raw, _ = listener.accept()
    report.send("ready")
    begin, spent = time.monotonic(), time.process_time()
    RECEIVING[carrier](raw, mib)
    report.send((time.monotonic() - begin, time.process_time() - spent))


# -- plain, and TLS as Python has it ------------------------------------------------------------------------


def send_plain(raw: socket.socket, mib: int) -> None:
    """Sends the same MiB again and again."""
    payload = bytes(MIB)
    for _ in range(mib):
        raw.sendall(payload)
    raw.close()


def receive_plain(raw: socket.socket, mib: int) -> None:
    """Receives into one buffer."""
    place, left = memoryview(bytearray(MIB)), mib * MIB
    while left:
        count = raw.recv_into(place[:left])
        if not count:
            raise SystemExit("the sender has hung up")
        left -= count


def send_tls(raw: socket.socket, mib: int) -> None:
    """As `send_plain`, sealed by ssl."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    send_plain(context.wrap_socket(raw), mib)


def receive_tls(raw: socket.socket, mib: int) -> None:
    """As `receive_plain`, opened by ssl."""
    receive_plain(new_certificate().context.wrap_socket(raw, server_side=True), mib)


# -- ours ---------------------------------------------------------------------------------------------------


def send_ours(raw: socket.socket, mib: int) -> None:
    """Sends with a Sender, from a backlog."""
    asyncio.run(_send_ours(raw, mib))


async def _send_ours(raw: socket.socket, mib: int) -> None:
    payload, backlog, sent = bytes(MIB), Backlog(0), list[int]()
    all_sent, ended = asyncio.Event(), asyncio.Event()

    def note(size: int) -> None:
        sent.append(size)
        if len(sent) == mib:
            all_sent.set()

    def parcel(number: int) -> QueuedPayload:
        def pack() -> Packed:
            head = packed_head(RUN, Mean(0, 1, number, MADE, payload))
            return prefix(len(head), MIB, Flow.GATHER), head, payload

        return QueuedPayload(Flow.GATHER, 0, pack, note, print)

    sender = Sender(
        BulkSocket(raw, KEY),
        backlog,
        SpareCapacity(PathRtt()),
        Unpaced(),
        Throttle().up,
        Posts(),
        lambda *_: None,
        ended.set,
    )
    for number in range(mib):
        backlog.put(parcel(number))
    sender.start()
    await all_sent.wait()
    sender.close()
    await ended.wait()


def receive_ours(raw: socket.socket, mib: int) -> None:
    """Receives with a Receiver, each message in the event loop."""
    asyncio.run(_receive_ours(raw, mib))


async def _receive_ours(raw: socket.socket, mib: int) -> None:
    came, ended, all_came = list[int](), asyncio.Event(), Future[None]()

    def keep(run: RunId, message: Message | None, begin: float, end: float, size: int) -> None:
        assert isinstance(message, Mean)
        came.append(message.chunk)
        if len(came) == mib:
            all_came.set_result(None)

    def complain(error: RemoteError) -> None:
        all_came.set_exception(error)

    receiver = Receiver(
        BulkSocket(raw, KEY),
        PEER,
        MemoryAccount(),
        Credit(),
        Throttle().down,
        Posts(),
        lambda run: True,
        complain,
        keep,
        ended.set,
    )
    receiver.start()
    await asyncio.wrap_future(all_came)
    receiver.close()
    await ended.wait()


SENDING: dict[str, Work] = {"tcp": send_plain, "tls": send_tls, "shoal": send_ours}
RECEIVING: dict[str, Work] = {"tcp": receive_plain, "tls": receive_tls, "shoal": receive_ours}

if __name__ == "__main__":
    main()
