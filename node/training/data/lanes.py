"""Which tokens a member reads: a batch is a pure function of (run seed, lane, round, step).

A member reads the lane that the roster gave it, so members of a round read different data. The round is part of the
key, so a member that restarts or changes lanes repeats nothing. A newcomer that was in no roster yet reads a lane
derived from its peer id, far above those of rosters.

Windows are drawn with replacement from the whole training text, with BLAKE3 as a counter-mode generator: it gives the
same on every machine, without a state to keep. Two lanes overlap by chance; for L windows of T tokens in a text of n
bytes the expected overlap is a share of about 2 L T / n.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
import torch
from blake3 import blake3
from torch import Tensor

from shoal.protocol.base.errors import LocalError
from shoal.protocol.base.ids import PeerId, digest

ROSTER_LANES = 1 << 32  # rosters give lanes below this
KEY_CONTEXT = "shoal v1 lane windows"


def newcomer_lane(peer: PeerId) -> int:
    """The lane of a peer that was not in the last roster."""
    return ROSTER_LANES + int.from_bytes(digest("newcomer lane", peer.encode())[:7], "little")


def lane_after(members: Sequence[str], peer: PeerId) -> int:
    """The lane of a peer in the round after a round with these members, in roster order."""
    return members.index(peer) if peer in members else newcomer_lane(peer)


def lane_starts(span: int, seed: int, lane: int, round: int, step: int, batch: int) -> Tensor:
    """Where the windows of one batch begin: (batch,) in range(span)."""
    draws = blake3(struct.pack("<4Q", seed, lane, round, step), derive_key_context=KEY_CONTEXT).digest(length=8 * batch)
    return torch.from_numpy((np.frombuffer(draws, "<u8") % span).astype(np.int64))


def lane_batch(text: Tensor, seed: int, lane: int, round: int, step: int, batch: int, context: int) -> Tensor:
    """One batch of int64 tokens (batch, context + 1): inputs and, shifted by one, targets.

    Raises LocalError if the text is shorter than a window.
    """
    span = len(text) - context
    if span < 1:
        raise LocalError(
            f"the training text has {len(text)} bytes; a window of {context + 1} does not fit", code="data-empty"
        )
    starts = lane_starts(span, seed, lane, round, step, batch)
    return text[starts[:, None] + torch.arange(context + 1)].long()
