"""A run's link as a QR code, for a terminal or a page to draw."""

from __future__ import annotations

QUIET = 2  # modules of light border: half of what the standard demands, and enough for a screen


def qr_rows(text: str) -> list[str]:
    """The rows of a square code with its border; 1 is a dark module.

    In capitals, which need less room in a code, and in which a link means the same.
    """
    import segno

    code = segno.make(text.upper(), error="l", micro=False)
    return ["".join("01"[module] for module in row) for row in code.matrix_iter(border=QUIET)]
