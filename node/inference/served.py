"""What is served: the user's options for opening a source (ServeOptions, Mix), and the opened model (Served)."""

from __future__ import annotations

import re
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
AVERAGE, PCB = "average", "pcb"


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """The user's options for opening a source."""

    device: str = "auto"
    slots: int = SLOTS
    tokenizer: str = ""  # a file, or BYTE_TOKENS; empty: the source's own
    threads: int = 0  # CPU threads; 0: as many as a worker uses
    mix: str = ""  # how experts are mixed (Mix); empty: full
    prior: str = ""  # a text file on which the experts' prior is estimated; empty: the source's prior
    base: str = ""  # the parameters that the experts began with, for merges that need them
    prefer: str = HERE  # for a family: open experts whose files are here, or ask "peers" where any answer
    patience: float = PATIENCE  # the most seconds that a peer's expert may take for an answer

    def check_no_mix(self, what: str) -> None:
        """LocalError if an option was set that is for experts only."""
        if self.mix or self.prior or self.base:
            raise LocalError(f"--mix, --prior and --base are for experts, and not for {what}", code="bad-flags")
        self.check_no_peers(what)

    def check_no_peers(self, what: str) -> None:
        """LocalError if an option was set that is for experts on other peers only."""
        if (self.prefer, self.patience) != (HERE, PATIENCE):
            raise LocalError(
                f"--prefer and --patience are for a family that the node is in, and not for {what}", code="bad-flags"
            )


@dataclass(frozen=True, slots=True)
class Mix:
    """How experts become one model.

    `full` and `top-k` mix their predictions; `average` and `pcb` merge their parameters beforehand.
    """

    name: str = "full"
    k: int | None = None  # experts that write each text; None: all

    @property
    def is_merge(self) -> bool:
        """Whether the experts are merged into one model."""
        return self.name in (AVERAGE, PCB)


def parse_mix(text: str) -> Mix:
    """The mix that --mix names; empty means `full`. LocalError if it is unknown."""
    if found := re.fullmatch(r"top-([1-9]\d{0,3})", text):
        return Mix(text, int(found[1]))
    if text in ("", "full", AVERAGE, PCB):
        return Mix(text or "full")
    raise LocalError(
        f"--mix {text} is unknown: say full, top-1, top-2 and so on, {AVERAGE} or {PCB}", code="unknown-name"
    )


@dataclass(frozen=True, slots=True, eq=False)
class Served:
    """An opened model, ready to be asked."""

    name: str
    scorer: Scorer
    vocabulary: Vocabulary
    chat: ChatFormat
    created: int  # seconds since 1970
    sentence: str  # describes it to people
    stops: tuple[str, ...] = ()  # strings that end a text, beside the vocabulary's end tokens
    look_again: Callable[[], str] | None = None  # in a thread: read the source again, and return what changed
    follow: Callable[[threading.Event], None] | None = None  # in a thread: follow the source until that is set
