"""What shell completion offers where a command takes a run or a peer: those that the node of this SHOAL_HOME knows.

The shell waits for it at each press of the tab key. So the node has LIMIT to answer, nothing is offered without an
answer, and nothing heavy is imported. What is offered goes into a command line: words that a shell could read as
anything but a word are left out.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

from shoal.protocol.base.errors import ShoalError

if TYPE_CHECKING:
    from shoal.node.api.answers import RunRow
    from shoal.node.api.client import Client

LIMIT = 0.5  # seconds
ENDS = (6, 12)  # characters of a PeerID's end, as logs and `shoal peers` show it; `shoal doctor` takes both
SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")  # of each run's name, by node/manifest/manifest.py

Row = TypeVar("Row")


def complete_run(incomplete: str) -> list[str]:
    """The node's runs that go on from `incomplete`: by their names, or by their ids if that is begun."""
    return _runs(incomplete, lambda _: True)


def complete_family(incomplete: str) -> list[str]:
    """The same, but only families of experts."""
    return _runs(incomplete, lambda run: run.get("experts") is not None)


def complete_peer(incomplete: str) -> list[str]:
    """The node's peers that go on from `incomplete`: by the ends of their PeerIDs, or whole if that is begun."""
    found = dict.fromkeys(row["peer"] for row in _asked(lambda client: client.peers()))
    return offered([[*(peer[-end:] for end in ENDS), peer] for peer in found], incomplete)


def offered(things: Iterable[Sequence[str]], incomplete: str) -> list[str]:
    """For each thing the first of its names that goes on from `incomplete`, and names nothing else."""
    known = [list(dict.fromkeys(names)) for names in things]
    named = Counter(name for names in known for name in names)
    fitting = (
        [name for name in names if name.startswith(incomplete) and named[name] == 1 and SAFE.fullmatch(name)]
        for names in known
    )
    return [names[0] for names in fitting if names]


def _runs(incomplete: str, wanted: Callable[[RunRow], bool]) -> list[str]:
    rows = [row for row in _asked(lambda client: client.runs()) if wanted(row)]
    return offered([[row.get("name") or "", row["run"][:8], row["run"]] for row in rows], incomplete)


def _asked(ask: Callable[[Client], Sequence[Row]]) -> Sequence[Row]:
    """What the node answers within LIMIT; nothing without a node, or if anything is wrong with it."""
    from shoal.node.api.client import Client
    from shoal.node.base.home import find_home

    try:
        return ask(Client(find_home(), LIMIT))
    except (ShoalError, OSError):
        return ()
