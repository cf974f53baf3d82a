"""The same benchmark of this checkout and of another one in turns: what slows the machine down slows down both.

    python benchmarks/in_turns.py ../before --key seconds -- allreduce.py --peers 4 --mib 256 --json

Runs a script of benchmarks/ with both, each with its own copy of the script if it has one, and takes the figure `--key`
of the last JSON line that it prints. Prints the ratio of the two for each pair (this one over the other), then the
median of the ratios, and the interval in which the true median lies in 95 of 100 cases, by the order of the ratios.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).parent.parent
CONFIDENCE = 0.95


def main() -> int:
    """Play the pairs; each begins with the other one."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("other", type=Path, help="a checkout")
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--key", required=True, help="the figure's name")
    parser.add_argument("script", help="of benchmarks/")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="the script's")
    options = parser.parse_args()
    ratios = list[float]()
    for _ in range(options.pairs):
        before, now = (
            figure(tree.resolve(), options.script, options.arguments, options.key) for tree in (options.other, HERE)
        )
        ratios.append(now / before)
        print(f"{before:10.4f} {now:10.4f}   {ratios[-1]:.3f}", flush=True)
    low, high = interval(ratios)
    print(f"median of {len(ratios)} ratios: {statistics.median(ratios):.3f} ({low:.3f} to {high:.3f})")
    return 0


def figure(tree: Path, script: str, arguments: Sequence[str], key: str) -> float:
    """What the script says of the code of a checkout."""
    own = tree / "benchmarks" / script
    path = own if own.exists() else HERE / "benchmarks" / script
    environ = {**os.environ, "PYTHONPATH": str(tree / "src")}
    done = subprocess.run([sys.executable, str(path), *arguments], env=environ, stdout=subprocess.PIPE, check=True)
    return float(json.loads(done.stdout.splitlines()[-1])[key])


def interval(ratios: Sequence[float]) -> tuple[float, float]:
    """The narrowest pair of order statistics that has the median between them (sign test); all, if they are few."""
    ordered, count = sorted(ratios), len(ratios)
    for rank in range((count - 1) // 2, 0, -1):
        outside = 2 * sum(math.comb(count, below) for below in range(rank + 1)) / 2**count
        if 1 - outside >= CONFIDENCE:
            return ordered[rank], ordered[count - 1 - rank]
    return ordered[0], ordered[-1]


if __name__ == "__main__":
    sys.exit(main())
