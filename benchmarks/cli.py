"""How long a user waits for the command line: `shoal --help` under 0.25 s, commands that ask a node under 0.4 s.

    python benchmarks/cli.py [--json]

The median of several calls counts. Exit 1 if a limit is missed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

from kit.node import Node, shoal

CALLS = 7
HELP, READ = 0.25, 0.4  # seconds
READ_COMMANDS = (["status"], ["status", "--json"], ["peers"], ["run", "ls"], ["version"])


def main() -> int:
    """Times all commands; 0 if each keeps its limit."""
    parser = argparse.ArgumentParser(description="Time the command line.")
    parser.add_argument("--json", action="store_true")
    as_json = parser.parse_args().json
    results = [_result(["--help"], HELP, lambda words: subprocess.run(shoal(*words), capture_output=True))]
    with Node() as node:
        results += [_result(words, READ, lambda words: node.run(*words)) for words in READ_COMMANDS]
    for result in results:
        line = f"shoal {result['command']:16} {result['seconds']:.3f} s  (limit {result['limit']} s)"
        print(json.dumps(result) if as_json else line)
    return 0 if all(result["ok"] for result in results) else 1


def _result(
    words: Sequence[str], limit: float, call: Callable[[Sequence[str]], subprocess.CompletedProcess[bytes]]
) -> dict[str, object]:
    seconds = statistics.median(_timed(words, call) for _ in range(CALLS))
    return {"command": " ".join(words), "seconds": round(seconds, 3), "limit": limit, "ok": seconds < limit}


def _timed(words: Sequence[str], call: Callable[[Sequence[str]], subprocess.CompletedProcess[bytes]]) -> float:
    begin = time.monotonic()
    done = call(words)
    took = time.monotonic() - begin
    if done.returncode:
        raise SystemExit(f"shoal {' '.join(words)} failed: {done.stderr.decode(errors='replace')}")
    return took


if __name__ == "__main__":
    sys.exit(main())
