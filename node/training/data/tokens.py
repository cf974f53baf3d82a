"""Texts as the tokens that a model sees: bytes, or those of a tokenizer that all members have.

A tokenizer that is a file is one of the run's data, so all have the same by its digest, and members give it; one of
the hub is named by a commit. It is read by the library `tokenizers`, from JSON: nothing in it is executed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shoal.node.base import extra
from shoal.node.manifest.data import HUB, DataSpec
from shoal.node.training.data.hub import not_had
from shoal.node.training.data.text import opened
from shoal.protocol.base.errors import LocalError

AT_ONCE = 1 << 18  # characters of texts that are encoded together: meanwhile the library holds some 130 bytes a token
TOKENIZER_FILE = "tokenizer.json"


class Tokenizer:
    """The tokens of a run that names a tokenizer."""

    def __init__(self, spec: DataSpec, content: bytes, vocab: int | None = None) -> None:
        """`content` is a tokenizer.json; LocalError unless it is one, and all its tokens are below `vocab`."""
        problem = f"the run's tokenizer {spec.tokenizer} cannot be read"
        self._tokens, self.size = opened(content, spec.tokenizer, problem)
        if vocab is not None and self.size > vocab:
            raise LocalError(f"the tokenizer {spec.tokenizer} has {self.size:,} tokens, and the run's model {vocab:,}")
        self.end: int | None = None  # the token after each text
        if spec.end_of_text:
            end = self._tokens.token_to_id(spec.end_of_text)
            if end is None:
                raise LocalError(f"data.end_of_text {spec.end_of_text!r} is no token of {spec.tokenizer}")
            self.end = int(end)

    def encode(self, texts: Iterable[str]) -> Tensor:
        """All texts one after the other, each with its end: int32, (tokens,)."""
        after = [] if self.end is None else [self.end]
        parts: list[np.ndarray[Any, np.dtype[np.int32]]] = [np.empty(0, np.int32)]
        for several in _batches(texts):
            encoded = self._tokens.encode_batch(several, add_special_tokens=False)
            parts += [np.array([*each.ids, *after], np.int32) for each in encoded]
        tensor: Tensor = torch.from_numpy(np.concatenate(parts))
        return tensor

    def decode(self, tokens: Sequence[int]) -> str:
        """What they stand for."""
        return str(self._tokens.decode(list(tokens)))


def _batches(texts: Iterable[str]) -> Iterator[list[str]]:
    """So many texts that they have `AT_ONCE` characters, or one that has more."""
    several, size = list[str](), 0
    for text in texts:
        several.append(text)
        size += len(text)
        if size >= AT_ONCE:
            yield several
            several, size = [], 0
    if several:
        yield several


def from_hub(spec: DataSpec) -> bytes:
    """The tokenizer.json of the hub's repository at the commit that the manifest names.

    LocalError if it is not to be had; TransportError if it is not now.
    """
    extra.tokenizers()
    from huggingface_hub import hf_hub_download

    repository, _, revision = spec.tokenizer.removeprefix(HUB).partition("@")
    try:
        path = hf_hub_download(repository, TOKENIZER_FILE, revision=revision, token=False)  # a stranger has named it
        with open(path, "rb") as file:
            return file.read()
    except Exception as error:  # of the network, the hub, the disk
        raise not_had(f"cannot get the tokenizer {spec.tokenizer}", error) from error
