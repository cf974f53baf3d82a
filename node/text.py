"""Text for a terminal: what a peer sent may be in it, and must not steer the terminal or break the line."""

from __future__ import annotations


def printable(text: str) -> str:
    """`text` on one line, with a ? for every control character."""
    return "".join(letter if letter.isprintable() else "?" for letter in " ".join(text.splitlines()))
