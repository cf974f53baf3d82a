"""One row of the table of codes."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Fault(StrEnum):
    """Whose fault something is, as it is said to people."""

    YOU = "yours"
    MACHINE = "this machine's"
    PEER = "a peer's"
    NETWORK = "the network's"
    SHOAL = "Shoal's: a bug"
    NOBODY = "nobody's"


class Row(NamedTuple):
    """What a code means; the remedy is empty if there is nothing to do."""

    fault: Fault
    what: str
    remedy: str = ""
