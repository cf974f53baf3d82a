"""What a source gives to serve, and what its owner has chosen for it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from shoal.node.inference.chat import ChatFormat
from shoal.node.inference.scorer import Scorer
from shoal.node.training.data.vocabulary import Vocabulary
from shoal.protocol.base.errors import LocalError

SLOTS = 32
BYTE_TOKENS = "bytes"  # instead of a tokenizer's file
HERE, PATIENCE = "here", 10.0


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
    prefer: str = HERE  # of a family's experts: open those whose files are here, or ask "peers" where any answers
    patience: float = PATIENCE  # seconds that a peer's expert may take at most

    def check_no_mix(self, what: str) -> None:
        """LocalError if something was chosen that only means something for experts."""
        if self.mix or self.prior or self.base:
            raise LocalError(f"--mix, --prior and --base are for experts, and not for {what}")
        self.check_no_peers(what)

    def check_no_peers(self, what: str) -> None:
        """LocalError if something was chosen that only means something for experts of which some are on other peers."""
        if (self.prefer, self.patience) != (HERE, PATIENCE):
            raise LocalError(f"--prefer and --patience are for a family that the node is in, and not for {what}")


@dataclass(frozen=True, slots=True, eq=False)
class Served:
    """A model that can be asked."""

    name: str
    scorer: Scorer
    vocabulary: Vocabulary
    chat: ChatFormat
    created: int  # seconds since 1970
    sentence: str  # what it is, for people
    stops: tuple[str, ...] = ()  # strings that end a text, as its end tokens do
    look_again: Callable[[], str] | None = None  # at the source, from a thread; says what there is now
    follow: Callable[[threading.Event], None] | None = None  # the source, in a thread of its own until that is set
