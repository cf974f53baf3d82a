"""Tokenizing a run's texts for training, with the tokenizer that the manifest names.

The tokenizer is either a file among the run's data, covered by their digest and downloaded with them, or a file of
Hugging Face's hub at a certain commit. The library `tokenizers` reads it from JSON; nothing in it is executed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shoal.node.manifest.data import DataSpec
from shoal.node.training.data.vocabulary import load_tokenizer
from shoal.protocol.base.errors import LocalError

BATCH_CHARACTERS = 1 << 18  # of texts that are encoded together: the library holds about 130 bytes for each token


class Tokenizer:
    """The tokenizer of a run whose manifest names one."""

    def __init__(self, spec: DataSpec, content: bytes, vocab: int | None = None) -> None:
        """`content` is that of a tokenizer.json; LocalError if it is invalid, or a token is not below `vocab`."""
        problem = f"the run's tokenizer {spec.tokenizer} cannot be read"
        self._tokens, self.size = load_tokenizer(content, spec.tokenizer, problem)
        if vocab is not None and self.size > vocab:
            raise LocalError(
                f"the tokenizer {spec.tokenizer} has {self.size:,} tokens, and the run's model {vocab:,}",
                code="other-tokenizer",
            )
        self.end: int | None = None  # the token after each text
        if spec.end_of_text:
            end = self._tokens.token_to_id(spec.end_of_text)
            if end is None:
                raise LocalError(
                    f"data.end_of_text {spec.end_of_text!r} is no token of {spec.tokenizer}", code="other-tokenizer"
                )
            self.end = int(end)

    def encode(self, texts: Iterable[str]) -> Tensor:
        """The tokens of all texts, one after the other, each followed by the end-of-text token: int32, (tokens,)."""
        after = [] if self.end is None else [self.end]
        parts: list[np.ndarray[Any, np.dtype[np.int32]]] = [np.empty(0, np.int32)]
        for several in _batches(texts):
            encoded = self._tokens.encode_batch(several, add_special_tokens=False)
            parts += [np.array([*each.ids, *after], np.int32) for each in encoded]
        tensor: Tensor = torch.from_numpy(np.concatenate(parts))
        return tensor

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of these tokens."""
        return str(self._tokens.decode(list(tokens)))


def _batches(texts: Iterable[str]) -> Iterator[list[str]]:
    """Batches of texts, each closed as soon as it has BATCH_CHARACTERS."""
    several, size = list[str](), 0
    for text in texts:
        several.append(text)
        size += len(text)
        if size >= BATCH_CHARACTERS:
            yield several
            several, size = [], 0
    if several:
        yield several
