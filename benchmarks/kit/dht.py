"""The protocol between the DHT benchmark and its children: JSON lines, one question and one answer at a time.

    {"nodes": n, "first": address or ""}    ->    {"addresses": [...]}          the child makes n nodes, and joins them
    {"node": i, "store": [key, ...]}        ->    {"seconds": [...], "right": k}
    {"node": i, "get": [key, ...]}          ->    the same; right: the value that belongs to the key
    {"node": i, "miss": [key, ...]}         ->    the same; right: nothing was found
    {"first": address, "store": [key, ...]} ->    the same; each by a node that has just joined; get and miss likewise
    end of input                            ->    the child ends

Seconds are measured in the child, around each call, one call at a time. All other output goes to stderr.
"""

from __future__ import annotations

import hashlib

LIFETIME = 600.0


def value_of(key: str) -> bytes:
    """What is stored under `key`: 64 bytes, about an entry of a directory."""
    return hashlib.sha512(key.encode()).digest()
