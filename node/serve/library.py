"""Models of transformers as scorers, with the library's own cache as far as it is right for them.

Sequences of unequal length are one batch if their caches are padded on the left, and masked. The library's causal models
are made for that, but not all keep it: some count positions otherwise, or have caches that cannot be padded (sliding
windows, state-space models). What a model does is found out when it is opened, by asking it: `library_scorer` takes the
first of these ways whose scores are those of the whole sequences, computed anew.

    batched     one call for all, caches padded to one length
    one by one  a call for each sequence, with a cache of its own
    anew        no cache
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from shoal.node.models.hf import quietly
from shoal.node.serve.local import PlainScorer, in_groups
from shoal.node.serve.padded import Padded
from shoal.node.serve.scorer import LogProbs, Piece, Scorer

TOLERANCE = 1e-3  # of log-probabilities; right ones differ by the rounding of sums
PROBE = ((5, 1, 4, 1), (2, 6), (3,))  # prompts of unequal length; below any vocabulary
PROBED = ((7, 2), (1,), (4, 4, 5), (6,))  # and what follows: the slots of each round, one token each

log = logging.getLogger("shoal.serve")


class LibraryScorer:
    """See Scorer: each call is one of the library's, with the caches of its slots."""

    def __init__(self, network: Any, *, limit: int, slots: int, version: str, is_batched: bool) -> None:
        self.vocab: int = network.config.get_text_config().vocab_size
        self.limit, self.slots, self.version = limit, slots, version
        self._network, self._is_batched = network, is_batched
        self._caches: dict[int, Any] = {}  # of one sequence each, unless they are in `_padded`
        self._padded: Padded | None = None

    def extend(self, pieces: Sequence[Piece]) -> LogProbs:
        """See Scorer."""
        return in_groups(pieces, self._call)

    def end(self, slot: int) -> None:
        """See Scorer."""
        self._split()
        self._caches.pop(slot, None)
