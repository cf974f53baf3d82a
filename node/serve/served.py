"""What a source gives to serve, and what its owner has chosen for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from shoal.node.serve.chat import ChatFormat
from shoal.node.serve.scorer import Scorer
from shoal.node.serve.text import Codec

SLOTS = 32
BYTE_TOKENS = "bytes"  # instead of a tokenizer's file


@dataclass(frozen=True, slots=True)
class Choices:
    """Of whoever serves a source."""

    device: str = "auto"
    slots: int = SLOTS
    tokenizer: str = ""  # a file, or BYTE_TOKENS; empty: what the source says
    threads: int = 0  # of the CPU; 0: as many as a worker has
    mix: str = ""  # of experts (ensemble/mix.py); empty: full
    prior: str = ""  # a text's file, on which the experts' prior is estimated; empty: the source's
    base: str = ""  # what the experts have begun with, where a merge needs that


@dataclass(frozen=True, slots=True, eq=False)
class Served:
    """A model that can be asked."""

    name: str
    scorer: Scorer
    codec: Codec
    chat: ChatFormat
    created: int  # seconds since 1970
    sentence: str  # what it is, for people
    look_again: Callable[[], str] | None = None  # at the source, from a thread; says what there is now
