"""How experts become one model, by the names that people choose."""

from __future__ import annotations

import re
from dataclasses import dataclass

from shoal.protocol.errors import LocalError

AVERAGE, PCB = "average", "pcb"


@dataclass(frozen=True, slots=True)
class Mix:
    """`full` and `top-k` ask experts and mix what they say; `average` and `pcb` merge their parameters beforehand."""

    name: str = "full"
    k: int | None = None  # experts that write; None: all

    @property
    def is_merge(self) -> bool:
        """Whether one model is made of all."""
        return self.name in (AVERAGE, PCB)


def parse_mix(text: str) -> Mix:
    """LocalError unless it is one of them; nothing is `full`."""
    if found := re.fullmatch(r"top-([1-9]\d{0,3})", text):
        return Mix(text, int(found[1]))
    if text in ("", "full", AVERAGE, PCB):
        return Mix(text or "full")
    raise LocalError(f"--mix {text} is unknown: say full, top-1, top-2 and so on, {AVERAGE} or {PCB}")
