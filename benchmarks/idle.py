"""The cost of an idle daemon: at most 150 MB and 1 % of a core over two minutes.

    python benchmarks/idle.py [--seconds 120] [--json]

Memory is the resident set at the end, processor time is that of the process over the whole time (Linux: /proc).
Exit 1 if a limit is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

from kit.node import Node

MEMORY, CORE = 150e6, 0.01
SETTLE = 5.0  # seconds for the start, which is not idle


def main() -> int:
    """Measures an idle daemon; 0 if it keeps both limits."""
    parser = argparse.ArgumentParser(description="Measure an idle daemon.")
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with Node() as node:
        time.sleep(SETTLE)
        begin = _processor_seconds(node.process.pid)
        time.sleep(options.seconds)
        core = (_processor_seconds(node.process.pid) - begin) / options.seconds
        memory = _resident_bytes(node.process.pid)
    ok = memory <= MEMORY and core <= CORE
    if options.json:
        print(json.dumps({"memory": memory, "core": round(core, 5), "seconds": options.seconds, "ok": ok}))
    else:
        limits = f"(limits {MEMORY / 1e6:.0f} MB and {CORE:.0%})"
        print(f"idle daemon: {memory / 1e6:.0f} MB, {core:.2%} of a core over {options.seconds:.0f} s {limits}")
    return 0 if ok else 1


def _processor_seconds(pid: int) -> float:
    """User and system time of a process: fields 14 and 15 of proc(5)'s stat, counted after the command's name."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _resident_bytes(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    sys.exit(main())
