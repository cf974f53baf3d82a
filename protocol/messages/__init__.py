"""The table of messages; importing this package fills it.

Tags: 1-19 membership, 20-49 rounds (44-47 those of replicas), 50-59 state transfer, 60-69 left to tests (all of them
within a run); 70-89 and 100-119 calls from node to node. Refused from the network: 90-99, signed or stored values,
which travel within messages only; 200-299, between the processes of one machine and in its files, each beside what it
is about (node/ipc, node/handout.py, node/experts). A tag is never reused; one that is taken is refused on import.
"""

from shoal.protocol.messages import (
    bulk,
    data,
    decision,
    dht,
    directory,
    doctor,
    experts,
    membership,
    node,
    payloads,
    replicas,
    rounds,
    status,
    transfer,
)

__all__ = [
    "bulk",
    "data",
    "decision",
    "dht",
    "directory",
    "doctor",
    "experts",
    "membership",
    "node",
    "payloads",
    "replicas",
    "rounds",
    "status",
    "transfer",
]
