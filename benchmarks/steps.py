"""Steps a second of `ddp`, where each step is a decision of the log, with four nodes on this machine.

    python benchmarks/steps.py [--peers 4] [--steps 150] [--json]

`shoal up` trains a model of 0.8M parameters on its built-in text; the first fifth of the steps warms up. A decision is
the phase `deciding` of the first of the peers: from when it has all means until their result is decided.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

MANIFEST = """
name = "steps"
[model]
dim = 128
layers = 4
heads = 4
kv_heads = 4
hidden = 344
context = 32
[method]
name = "ddp"
batch = 1
[rounds]
min_members = 2
start_members = {peers}
"""
WARM = 0.2  # share of the steps


def main() -> int:
    """Print one figure; 0 if there is one."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--peers", type=int, default=4)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--json", action="store_true", help="one JSON line")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="shoal-steps-") as folder:
        pace, decision = measure(Path(folder), options.peers, options.steps)
    if options.json:
        print(json.dumps({"steps_a_second": pace, "decision_ms": decision}))
    else:
        print(f"{pace:.2f} steps/s; a decision takes {decision:.1f} ms in the median")
    return 0


def measure(folder: Path, peers: int, steps: int) -> tuple[float, float]:
    """Steps a second and the median of a decision in milliseconds, as the first of the peers recorded them."""
    manifest, out = folder / "steps.toml", folder / "out"
    manifest.write_text(MANIFEST.format(peers=peers))
    flags = {"manifest": manifest, "out": out, "peers": peers, "rounds": steps, "kill-at": "none", "join-at": "none"}
    flags |= {"checkpoint-every": 0}
    words = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
    subprocess.run([sys.executable, "-m", "shoal.node", "up", *words], stdout=subprocess.DEVNULL, check=False)
    lines = map(json.loads, (out / "metrics.jsonl").read_text().splitlines())
    rounds = [line for line in lines if line["kind"] == "round" and line["round"] >= WARM * steps]
    warm = {line["round"]: line for line in rounds if line["peer"] == rounds[0]["peer"]}
    first, last = warm[min(warm)], warm[max(warm)]
    pace = (last["round"] - first["round"]) / (last["applied_at"] - first["applied_at"])
    decisions = [
        1e3 * sum(each["seconds"] for each in line["phases"] if each["phase"] == "deciding") for line in warm.values()
    ]
    return pace, statistics.median(decisions)


if __name__ == "__main__":
    sys.exit(main())
