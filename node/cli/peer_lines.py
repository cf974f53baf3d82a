"""`shoal peers` for people: a line for each peer, and below why each is reached as it is.

Names are whole where there is room; of a narrow terminal's the end is there, by which `shoal doctor` knows them.
"""

from __future__ import annotations

import shutil
import textwrap
from typing import Any

from shoal.node.cli.present import bits, clean, is_terminal, number, short, show_table

Answer = dict[str, Any]
COLUMNS = ("peer", "run", "round", "path", "rtt ms", "sends", "receives")
WIDE = 116  # columns that whole names need
END = 12  # characters of a name


def show_peers(peers: list[Answer]) -> None:
    """One line per peer and run, and the reasons."""
    if not peers:
        print("no peers")
        return
    width = shutil.get_terminal_size((WIDE, 24)).columns if is_terminal() else WIDE
    show_table(COLUMNS, [_row(each, whole=width >= WIDE) for each in peers])
    reasons = {each["peer"]: each["reason"] for each in peers if each.get("reason")}
    if reasons:
        print()
    for peer, reason in reasons.items():
        print(textwrap.fill(f"{clean(peer[-6:])}: {clean(reason)}", width, subsequent_indent=" " * 8))


def _row(peer: Answer, whole: bool) -> list[Any]:
    is_up = peer.get("path") is not None
    rates = [bits(peer.get(key)) or ("not yet" if is_up else None) for key in ("send_rate", "receive_rate")]
    name = peer["peer"] if whole else peer["peer"][-END:]
    return [name, short(peer.get("run")), peer.get("round"), peer.get("path"), number(peer.get("rtt_ms")), *rates]
