"""Text for a terminal, without control characters: it may quote what a peer sent."""

from __future__ import annotations


def printable(text: str) -> str:
    """`text` on one line, with a ? for every control character."""
    return "".join(letter if letter.isprintable() else "?" for letter in " ".join(text.splitlines()))
