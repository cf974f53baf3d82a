"""How long a node's API and its peers wait for answers while whatever it forces to disk takes 300 ms.

    python benchmarks/slow_disk.py [--milliseconds 300] [--seconds 30]

Two real nodes train in a run of `ddp`, in which every step is a decision, so that the first one forces all the time.
Its `fsync` and `fdatasync` are those of a shim (LD_PRELOAD, needs `cc`). `API` is the time of GET /v1/status on it,
`ping` the round-trip time that the other one measures to it. 0 if all but one in a
hundred answers of each took 50 ms at most.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))  # for the tests' nodes and shims

from shoal.node.client.up.processes import Children
from tests.integration.nodes import RealNode, until
from tests.preload import preloaded

GOAL = 50.0  # milliseconds
EVERY = 0.05  # seconds between two questions
WARM = 3  # steps before the measurement
SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>

static void wait_for_disk(void) { usleep(1000 * atoi(getenv("SHIM_MILLISECONDS"))); }

int fsync(int descriptor) {
    static int (*real)(int);
    if (!real) real = dlsym(RTLD_NEXT, "fsync");
    wait_for_disk();
    return real(descriptor);
}

int fdatasync(int descriptor) {
    static int (*real)(int);
    if (!real) real = dlsym(RTLD_NEXT, "fdatasync");
    wait_for_disk();
    return real(descriptor);
}
"""
MANIFEST = """
name = "slow-disk"
[model]
dim = 32
layers = 1
hidden = 64
context = 32
[method]
name = "ddp"
batch = 2
[rounds]
min_members = 2
start_members = 2
"""


def main() -> int:
    """Print a row for each kind of answer."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--milliseconds", type=int, default=300, help="of each fsync; 0: as fast as the disk is")
    parser.add_argument("--seconds", type=float, default=30.0, help="of the measurement")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="shoal-slow-disk-") as folder, Children() as children:
        api, pings, steps = measure(children, Path(folder), options.milliseconds, options.seconds)
    print(f"every fsync {options.milliseconds} ms, {steps / options.seconds:.1f} steps/s")
    print(f"{'':6} {'answers':>8} {'median':>8} {'99 of 100':>10} {'slowest':>8}   ms")
    for name, times in (("API", api), ("ping", pings)):
        print(
            f"{name:6} {len(times):8} {statistics.median(times):8.1f} {most_of(times):10.1f} {max(times):8.1f}",
            flush=True,
        )
    return 0 if max(most_of(api), most_of(pings)) <= GOAL else 1


def most_of(times: Sequence[float]) -> float:
    """What 99 of 100 do not exceed."""
    return sorted(times)[int(0.99 * (len(times) - 1))]


def measure(
    children: Children, folder: Path, milliseconds: int, seconds: float
) -> tuple[list[float], list[float], int]:
    """Milliseconds of the answers of the API and of pings, and the steps that were made meanwhile."""
    shim = preloaded(folder, SHIM) | {"SHIM_MILLISECONDS": str(milliseconds)}
    slow = RealNode(folder / "slow")
    slow.prefix = ("env", *(f"{name}={value}" for name, value in shim.items()))
    slow.start(children)
    slow.client.create_run(MANIFEST, True)
    other = RealNode(folder / "other").start(children, slow.address)
    other.client.join_run(str(slow.client.run_link("slow-disk")["link"]), True)

    def words() -> str:
        return f"{slow.words()}\n{other.words()}"

    until(lambda: min(slow.round(), other.round()) >= WARM, "the first steps", words)
    api, pings, before, began = list[float](), list[float](), slow.round(), time.monotonic()
    while time.monotonic() - began < seconds:
        asked = time.perf_counter()
        slow.client.status()
        api.append(1e3 * (time.perf_counter() - asked))
        pings += [row["rtt_ms"] for row in other.client.peers() if row["rtt_ms"] is not None]
        time.sleep(EVERY)
    return api, pings, slow.round() - before


if __name__ == "__main__":
    sys.exit(main())
