"""What a node must know to go on after a restart: the runs that it is in, and where the others were.

    runs/<id>/joined.record   the manifest, its author's signature, whether we train, the checkpoint that we came with;
                              forced to disk before we are in
    peers.json                the last good peers, latest first; a hint, so a damaged file is no file. It is written
                              before we are in a run that others have told us of, and soon after anybody is new

A record is checked like a peer's word: the manifest must hash to the folder's name, and its author must have signed it.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from shoal.node.disk import Disk
from shoal.node.home import Home
from shoal.node.options import is_run_id
from shoal.protocol.errors import LocalError
from shoal.protocol.ids import PeerId
from shoal.protocol.wire import Message, message

KEPT = 64  # peers
MAX_ADDRESSES, MAX_ADDRESS = 8, 256  # of one peer; characters
JOINED = "joined"


@message(240)
class Joined(Message):
    """The record of a run that we are in."""

    manifest: bytes  # canonical
    author: PeerId
    signature: bytes
    trains: bool
    checkpoint: str  # the folder of the one that we came with, absolute; empty: none


def remember_run(home: Home, run: str, joined: Joined) -> None:
    """Be in `run` after a restart, too; LocalError if that cannot be written."""
    Disk(home.run_folder(run)).put(JOINED, joined)


def forget_run(home: Home, run: str) -> None:
    """Not be in `run` after a restart; its votes stay, because we may come back."""
    Disk(home.run_folder(run)).remove(JOINED)


def remembered_runs(home: Home) -> list[str]:
    """The runs that we were in, in the order in which we entered them: ids in hex."""
    found = []
    for path in home.runs.glob(f"*/{JOINED}.record"):
        if is_run_id(path.parent.name, whole=True):
            with suppress(OSError):
                found.append((path.stat().st_mtime_ns, path.parent.name))
    return [run for _, run in sorted(found)]


def recall_run(home: Home, run: str) -> Joined:
    """The record of a remembered run; LocalError if it is damaged."""
    joined = Disk(home.run_folder(run)).load().get(JOINED)
    if not isinstance(joined, Joined):
        raise LocalError(f"{home.run_folder(run)} does not say which run it is about: leave the run and join it again")
    return joined


@dataclass(frozen=True, slots=True)
class PeerCache:
    """The file of the last good peers."""

    path: Path
    _writing: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def load(self) -> dict[PeerId, tuple[str, ...]]:
        """Peers and their addresses, latest first; empty if the file is missing or damaged."""
        try:
            rows = json.loads(self.path.read_text(encoding="utf-8"))
            peers = {PeerId(str(row["peer"])): _addresses(row["addresses"]) for row in rows[:KEPT]}
        except (OSError, ValueError, TypeError, LookupError):
            return {}
        return {peer: addresses for peer, addresses in peers.items() if addresses}

    def update(self, peers: Mapping[PeerId, tuple[str, ...]]) -> None:
        """Put `peers` first; those before them stay while there is room. A full disk is no reason to stop.

        It reads and writes the disk, so call it in a thread; several may call it at once.
        """
        with self._writing:
            before = self.load()
            fresh = {peer: plain for peer, addresses in peers.items() if (plain := _addresses(addresses))}
            latest = dict(islice(({**fresh, **{k: v for k, v in before.items() if k not in fresh}}).items(), KEPT))
            if list(latest.items()) != list(before.items()):
                self._write(latest)

    def _write(self, peers: Mapping[PeerId, tuple[str, ...]]) -> None:
        rows = [{"peer": peer, "addresses": list(addresses)} for peer, addresses in peers.items()]
        new = self.path.with_suffix(".new")
        with suppress(OSError):
            with new.open("w", encoding="utf-8") as file:
                json.dump(rows, file, indent=1)
                file.flush()
                os.fsync(file.fileno())
            new.replace(self.path)


def _addresses(found: object) -> tuple[str, ...]:
    """Those that look like addresses, without the PeerID at their end."""
    each = found if isinstance(found, list | tuple) else ()
    plain = (str(address)[:MAX_ADDRESS].partition("/p2p/")[0] for address in each)
    return tuple(address for address in plain if address.startswith("/"))[:MAX_ADDRESSES]
