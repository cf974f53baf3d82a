"""Models of transformers as scorers."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from shoal.node.serve.local import PlainScorer
from shoal.node.serve.scorer import Scorer


def library_scorer(network: Any, *, limit: int, slots: int, version: str) -> Scorer:
    """A scorer of a causal model of the library."""

    def logits(tokens: Tensor) -> Tensor:
        out: Tensor = network(input_ids=tokens).logits
        return out

    vocab: int = network.config.get_text_config().vocab_size
    return PlainScorer(logits, network.device, vocab=vocab, limit=limit, slots=slots, version=version)
