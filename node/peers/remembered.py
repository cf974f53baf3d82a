"""What a node keeps on disk to go on after a restart: the runs that it is in, and the addresses of other nodes.

    runs/<id>/joined.record   the run's genesis, whether we train, the checkpoint that we came with; forced to disk
                              before we enter the run
    peers.json                the last good peers, the last to answer first; a hint, so a damaged file counts as none.
                              It is written before we enter a run that others have told us of, and soon after a new peer
                              is seen. A peer is dropped once it has been silent for SILENT_MOST while others answered;
                              only the time in which it was dialled counts, by a monotonic clock

A record is checked like data from a peer: the genesis must hash to the folder's name, and its author must have signed
it.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

from shoal.node.base.atomic import replace_file
from shoal.node.base.disk import SUFFIX, Disk, list_folder
from shoal.node.base.home import Home
from shoal.node.base.options import is_run_id
from shoal.protocol.base.errors import LocalError
from shoal.protocol.base.ids import PeerId
from shoal.protocol.base.multiaddrs import place_of, shortlist
from shoal.protocol.base.wire import Message, message
from shoal.protocol.messages.anchor import Anchor
from shoal.protocol.messages.genesis import Genesis

KEPT = 64  # peers
MAX_ADDRESSES, MAX_ADDRESS = 8, 256  # of one peer; characters
SILENT_MOST = 3 * 86_400.0  # seconds
STEP_MOST = 600.0  # seconds between two tries that count at most: in a longer gap nobody was dialled
JOINED = "joined"


@message(240)
class JoinedOfProtocol1(Message):
    """The record of a run of before a run's id had its author in it. It is recognised, and left as it is."""

    manifest: bytes
    author: PeerId
    signature: bytes
    trains: bool
    checkpoint: str


@message(242)
class Joined(Message):
    """The record of a run that we are in."""

    genesis: Genesis
    trains: bool
    checkpoint: str  # the absolute path of the checkpoint that we came with; empty: none
    anchor: Anchor | None  # that of the link by which we joined


def remember_run(home: Home, run: str, joined: Joined) -> None:
    """Writes that `run` is to be entered again after a restart; LocalError if that fails."""
    Disk(home.make_run_folder(run)).put(JOINED, joined)


def forget_run(home: Home, run: str) -> None:
    """`run` is not entered again after a restart; its votes stay, because we may come back."""
    Disk(home.run_folder(run)).remove(JOINED)


def forget_anchor(run_folder: Path) -> None:
    """The link by which we joined says nothing of the run's log any more; LocalError if that cannot be noted.

    The run keeps its place among the others.
    """
    disk, record = Disk(run_folder), run_folder / f"{JOINED}{SUFFIX}"
    joined = disk.get(JOINED)
    if isinstance(joined, Joined) and joined.anchor is not None:
        entered = _entered(record) or 0
        disk.put(JOINED, replace(joined, anchor=None))
        with suppress(OSError):
            os.utime(record, ns=(entered, entered))


def remembered_runs(home: Home) -> list[str]:
    """Ids in hex of the runs that we were in, in the order in which we entered them; LocalError if unreadable."""
    folders = [each for each in list_folder(home.runs) if is_run_id(each.name, whole=True)]
    found = [(at, each.name) for each in folders if (at := _entered(each / f"{JOINED}{SUFFIX}")) is not None]
    return [run for _, run in sorted(found)]


def _entered(record: Path) -> int | None:
    """When the record was written, in ns; None if there is none, 0 on other errors, which reading it will report."""
    try:
        return record.stat().st_mtime_ns
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:
        return 0


def recall_run(home: Home, run: str) -> Joined:
    """The record of a remembered run; LocalError if it is damaged, or of an earlier version of Shoal."""
    joined = Disk(home.run_folder(run)).get(JOINED)
    if isinstance(joined, JoinedOfProtocol1):
        raise LocalError(
            f"the run in {home.run_folder(run)} is of an earlier Shoal, whose protocol 1 this one does not speak: "
            "nothing of it was changed, and that version goes on with it; here it is let go by `shoal run leave`",
            code="other-protocol",
        )
    if not isinstance(joined, Joined):
        raise LocalError(
            f"{home.run_folder(run)} does not say which run it is about: leave the run and join it again",
            code="record-damaged",
        )
    return joined


@dataclass(frozen=True, slots=True)
class _Known:
    """A row of the file: a peer's addresses, and for how many seconds it has been silent."""

    addresses: tuple[str, ...]
    silent: float = 0.0


@dataclass(frozen=True, slots=True)
class PeerCache:
    """The file of the last good peers. All methods but `load` write to disk: call them in threads.

    A full disk is no reason to stop, and a file that cannot be read now is not replaced.
    """

    path: Path
    _writing: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)
    _missed: dict[PeerId, float] = field(default_factory=dict, repr=False, compare=False)  # when last missed

    def load(self) -> dict[PeerId, tuple[str, ...]]:
        """Peers and their addresses, latest first; empty if the file is missing, damaged, or cannot be read now."""
        with suppress(OSError):
            return {peer: known.addresses for peer, known in self._read().items()}
        return {}

    def update(self, peers: Mapping[PeerId, tuple[str, ...]]) -> None:
        """Puts `peers`, which are alive at these addresses, first; others stay while there is room."""
        with self._writing, suppress(OSError):
            fresh = {peer: _Known(plain) for peer, addresses in peers.items() if (plain := _addresses(addresses))}
            self._put_first(fresh)

    def reached(self, peer: PeerId, address: str) -> None:
        """Puts `peer`, which has answered, and `address` first; its other addresses stay while there is room."""
        with self._writing, suppress(OSError):
            known = self._read().get(peer)
            addresses = dict.fromkeys([*_addresses([address]), *(known.addresses if known else ())])
            if addresses:
                self._put_first({peer: _Known(shortlist(addresses, MAX_ADDRESSES))})

    def missed(self, peers: Iterable[PeerId]) -> None:
        """`peers` did not answer although others did; those silent for SILENT_MOST are dropped."""
        with self._writing, suppress(OSError):
            rows, now = self._read(), time.monotonic()
            for peer in [each for each in peers if each in rows]:
                step = min(STEP_MOST, now - self._missed.get(peer, now))
                rows[peer] = replace(rows[peer], silent=rows[peer].silent + step)
                self._missed[peer] = now
            self._write({peer: row for peer, row in rows.items() if row.silent <= SILENT_MOST})

    def _put_first(self, fresh: Mapping[PeerId, _Known]) -> None:
        for peer in fresh:
            self._missed.pop(peer, None)
        before = self._read()
        latest = dict(islice({**fresh, **{k: v for k, v in before.items() if k not in fresh}}.items(), KEPT))
        if list(latest.items()) != list(before.items()):
            self._write(latest)

    def _read(self) -> dict[PeerId, _Known]:
        try:
            rows = json.loads(self.path.read_bytes())
            found = {PeerId(str(row["peer"])): _known(row) for row in rows[:KEPT]}
        except (FileNotFoundError, ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError):
            return {}
        return {peer: known for peer, known in found.items() if known.addresses}

    def _write(self, peers: Mapping[PeerId, _Known]) -> None:
        rows = [
            {"peer": peer, "addresses": list(known.addresses), **({"silent_for": known.silent} if known.silent else {})}
            for peer, known in peers.items()
        ]
        replace_file(self.path, [json.dumps(rows, indent=1).encode()])


def _known(row: Mapping[str, object]) -> _Known:
    silent = row.get("silent_for")
    return _Known(_addresses(row["addresses"]), float(silent) if isinstance(silent, int | float) else 0.0)


def _addresses(found: object) -> tuple[str, ...]:
    """The well-formed addresses, without the PeerID at their end."""
    each = found if isinstance(found, list | tuple) else ()
    plain = (place_of(str(address)[:MAX_ADDRESS]) for address in each)
    return shortlist((address for address in plain if address.startswith("/")), MAX_ADDRESSES)
