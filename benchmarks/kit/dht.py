"""What a DHT's benchmark and its children say to each other: JSON lines, one question and one answer at a time.

    {"nodes": n, "first": address or ""}    ->    {"addresses": [...]}          the child makes n nodes, and joins them
    {"node": i, "store": [key, ...]}        ->    {"seconds": [...], "right": k}
    {"node": i, "get": [key, ...]}          ->    the same; right: the value that belongs to the key
    {"node": i, "miss": [key, ...]}         ->    the same; right: nothing was found
    {"first": address, "store": [key, ...]} ->    the same; each by a node that has just joined; get and miss likewise
    end of input                            ->    the child ends

Seconds are taken in the child, around each call, one call at a time. What libraries print goes to stderr.
"""

from __future__ import annotations

import hashlib
import json
import sys
from typing import Any, TextIO, cast

from kit.peer import only_ours

LIFETIME = 600.0


def value_of(key: str) -> bytes:
    """What is stored under `key`: 64 bytes, about an entry of a directory."""
    return hashlib.sha512(key.encode()).digest()


class Boss:
    """The benchmark, as a child sees it."""

    def __init__(self) -> None:
        self._answers: TextIO = only_ours()

    def next(self) -> dict[str, Any] | None:
        """The next question; None if there is none."""
        line = sys.stdin.readline()
        return cast(dict[str, Any], json.loads(line)) if line else None

    def say(self, **answer: Any) -> None:
        """One answer."""
        self._answers.write(json.dumps(answer) + "\n")
        self._answers.flush()
