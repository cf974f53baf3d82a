"""The held-out sequences on which members measure the validation loss while they train: the same ones for all.

They are windows of the held-out text, drawn without replacement in an order that follows from the run's seed. A smaller
sample is the beginning of a larger one.
"""

from __future__ import annotations

import random
import struct

from blake3 import blake3
from torch import Tensor

from shoal.node.ipc.messages import MOST_SEQUENCES
from shoal.node.training.data.corpus import Corpus

KEY_CONTEXT = "shoal v1 validation sequences"


def held_out_sequences(corpus: Corpus, context: int, seed: int) -> Tensor:
    """At most MOST_SEQUENCES rows: tokens (n, context + 1), or samples that are not text; none if nothing is held out.

    A text that is shorter than a window is one row of its length.
    """
    held = corpus.validation
    if held.ndim == 1:
        if len(held) < 2:
            return held.new_empty(0, context + 1)
        step = min(context, len(held) - 1)
        held = held.unfold(0, step + 1, step)  # each row begins with the last token of the one before
    key = blake3(struct.pack("<Q", seed), derive_key_context=KEY_CONTEXT).digest()
    return held[random.Random(key).sample(range(len(held)), min(MOST_SEQUENCES, len(held)))]
