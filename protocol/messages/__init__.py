"""The table of messages; importing this package fills it.

Tags within a run: 1-9 membership, 10-19 the log, 43-49, 56 and 57 replicas, 50-55 and 58 state transfer, 60-69
reserved for tests, 140-159 averaging. Calls from node to node: 70-89 and 100-119. Refused from the network: 90-99 and
120-139, signed or stored values, which travel only within messages; 200-299, messages between the processes of one
machine and in its files, defined beside their use (node/ipc, node/handout.py, node/experts). A tag is never reused; one
that is taken is refused on import.
"""

from shoal.protocol.messages import (
    anchor,
    averaging,
    bulk,
    data,
    dht,
    directory,
    doctor,
    experts,
    genesis,
    log,
    membership,
    node,
    replicas,
    transfer,
)

__all__ = [
    "anchor",
    "averaging",
    "bulk",
    "data",
    "dht",
    "directory",
    "doctor",
    "experts",
    "genesis",
    "log",
    "membership",
    "node",
    "replicas",
    "transfer",
]
