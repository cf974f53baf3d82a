"""The id space: 256 bits in which nodes and keys lie, with the exclusive or of two ids as their distance.

Kademlia (Maymounkov and Mazieres, IPTPS 2002). An id is the hash of a name, so nobody can choose one; but an
attacker can generate names until one hashes near a place. Hence a key has COPIES unrelated places.
"""

from __future__ import annotations

from functools import lru_cache

from shoal.protocol.base.ids import Digest, PeerId, digest

BITS = 256
COPIES = 3  # places of a key
REPLICAS = 5  # servers at each place that hold its records
K = 20  # contacts of a bucket, and of an answer


@lru_cache(maxsize=65_536)
def node_id(peer: PeerId) -> int:
    """The id of a node."""
    return int.from_bytes(digest("dht node", peer.encode()), "big")


def place(key: Digest, copy: int) -> Digest:
    """The id of a key's place number `copy`, 0 <= copy < COPIES."""
    return digest("dht place", key, bytes([copy]))


def run_key(run: bytes) -> Digest:
    """The key under which a run's members are found."""
    return digest("dht run", run)


def manifest_key(manifest: Digest) -> Digest:
    """The key under which the runs of the manifest with this digest are found."""
    return digest("dht manifest", manifest)


PUBLIC_RUNS = digest("dht public runs")
"""The key under which public runs are announced."""
