"""The id space: 256 bits in which nodes and keys lie, with the exclusive or of two ids as their distance.

Kademlia (Maymounkov and Mazieres, IPTPS 2002). An id follows from a name by hashing, so nobody chooses its own, but
whoever has patience can grind one: hence a key lies at COPIES places that have nothing to do with each other.
"""

from __future__ import annotations

from functools import lru_cache

from shoal.protocol.ids import Digest, PeerId, digest

BITS = 256
COPIES = 3  # places of a key
REPLICAS = 5  # servers at each place that hold its records
K = 20  # contacts of a bucket, and of an answer


@lru_cache(maxsize=65_536)
def node_id(peer: PeerId) -> int:
    """Where a node lies."""
    return int.from_bytes(digest("dht node", peer.encode()), "big")


def place(key: Digest, copy: int) -> Digest:
    """Where the records under `key` lie for the `copy`-th time, 0 <= copy < COPIES: a target for FindNode."""
    return digest("dht place", key, bytes([copy]))


def run_key(run: bytes) -> Digest:
    """Under which its members are found."""
    return digest("dht run", run)


def manifest_key(run: bytes) -> Digest:
    """Under which those are found who can serve the manifest with this hash."""
    return digest("dht manifest", run)


PUBLIC_RUNS = digest("dht public runs")
"""Under which runs are announced that anybody may join."""
