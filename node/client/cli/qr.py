"""A run's link as a QR code in the terminal, two modules in one character.

It has colours of its own where the terminal has any: scanners want dark modules on a light ground, whatever the
terminal's are. Where it does not fit, or the terminal has no such characters, there is none.
"""

from __future__ import annotations

import io
import os
import shutil
import sys

QUIET = 2  # modules around it: half of what the standard wants, and enough for a screen
LIGHT_ON_DARK, PLAIN = "\x1b[97;40m", "\x1b[0m"


def draw(text: str) -> list[str]:
    """The lines of the code; a full block is light."""
    import segno

    out = io.StringIO()
    segno.make(text, error="l", micro=False).terminal(out, border=QUIET, compact=True)
    return out.getvalue().splitlines()


def show(text: str, wanted: bool | None) -> None:
    """Print the code: if it is wanted, or, where nobody has said, if a person looks at a terminal that has room."""
    terminal = sys.stdout.isatty()
    if wanted is False or (wanted is None and not terminal) or not _can_print("█▀▄"):
        return
    lines = draw(text)
    if wanted is None and len(lines[0]) > shutil.get_terminal_size().columns:
        return
    coloured = terminal and not os.environ.get("NO_COLOR")
    print()
    for line in lines:
        print(f"{LIGHT_ON_DARK}{line}{PLAIN}" if coloured else line)


def _can_print(text: str) -> bool:
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        return False
    return True
