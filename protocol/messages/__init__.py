"""The table of messages; importing this package fills it.

Tags: 1-19 membership, 20-49 rounds, 50-69 state transfer, 70-89 node to node. A tag is never reused.
"""

from shoal.protocol.messages import membership, node, rounds, status, transfer

__all__ = ["membership", "node", "rounds", "status", "transfer"]
