"""The cost of training on this machine's devices: tokens a second, and the time of a round beside its steps.

    python benchmarks/device.py [--devices cuda,cpu] [--sizes 0.8M,12M,124M]

For each size one round's inner steps as the built-in worker makes them, on the text of the standard library, after a
round that warms up. `busy` is the share of a step in which the device computes, as torch's profiler has it (of GPUs).
`in` and `out` are what goes over at the two ends of a round: the parameters in; the change and the moments out.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from statistics import median

import torch
from torch.profiler import ProfilerActivity, profile

from shoal.node.ipc.shm import SharedVector
from shoal.node.ipc.vectors import moments_size
from shoal.node.manifest.manifest import Manifest, ModelSpec
from shoal.node.manifest.method import MethodSpec
from shoal.node.training.data.corpus import Corpus, stdlib_corpus
from shoal.node.training.trainer.device import device_bytes, device_name, pin
from shoal.node.training.trainer.inner import InnerTrainer

STEPS = {"cuda": 40, "cpu": 3}
SIZES = {
    "0.8M": (ModelSpec(), 8),  # the built-in run
    "12M": (ModelSpec(dim=384, layers=6, heads=6, kv_heads=6, hidden=1152, context=256), 32),
    "124M": (ModelSpec(dim=768, layers=12, heads=12, kv_heads=12, hidden=3072, context=1024), 8),
    "1.1B": (ModelSpec(dim=2048, layers=22, heads=32, kv_heads=4, hidden=5632, context=1024), 4),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", default="cuda,cpu" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--sizes", default="0.8M,12M,124M")
    arguments = parser.parse_args()
    corpus = stdlib_corpus()
    for size in arguments.sizes.split(","):
        for device in arguments.devices.split(","):
            measure(size, device, corpus)


def measure(size: str, device: str, corpus: Corpus) -> None:
    """Print one line."""
    model, batch = SIZES[size]
    steps = STEPS[torch.device(device).type]
    method = MethodSpec(inner_steps=steps, batch=batch)
    trainer = InnerTrainer(Manifest(name="bench", model=model, method=method), corpus, device)
    trainer.train(1, [0])
    times: list[float] = []
    done = time.perf_counter()

    def stepped(_: object) -> bool:
        nonlocal done
        times.append(time.perf_counter() - done)
        done += times[-1]
        return True

    trainer.train(2, [0], stepped)
    step = median(times)
    print(
        f"{size:>5} on {device_name(trainer.device)}: {batch * model.context / step:,.0f} tokens/s, "
        f"{step * 1e3:.1f} ms a step{busy(trainer, step)}; {transfers(trainer)}; "
        f"{device_bytes(trainer.device) >> 20} MiB of the device",
        flush=True,
    )


def busy(trainer: InnerTrainer, step: float) -> str:
    """The share of a step in which a GPU computes."""
    if trainer.device.type != "cuda":
        return ""
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        done = trainer.train(3, [0], lambda step: step.step < 3)
    return f", busy {sum(each.self_device_time_total for each in seen.key_averages()) / done.steps / 1e6 / step:.0%}"


def transfers(trainer: InnerTrainer) -> str:
    """The time of transfers between the device and shared memory, at both ends of a round."""
    size = trainer.layout.size
    theta, change, moments = (torch.from_numpy(SharedVector.create(n).array) for n in (size, size, moments_size(size)))
    for each in (theta, change, moments):
        pin(each, trainer.device)
    trainer.layout.read(trainer.model, theta)
    into = seconds(lambda: trainer.load(theta), trainer)
    out = seconds(lambda: torch.sub(theta, trainer.read(change), out=change), trainer)
    out += seconds(lambda: trainer.store(moments), trainer)
    return f"in {into * 1e3:.1f} ms, out {out * 1e3:.1f} ms for {4 * trainer.layout.size / 2**20:.1f} MiB"


def seconds(what: Callable[[], object], trainer: InnerTrainer) -> float:
    """The median of five."""
    times = []
    for _ in range(5):
        start = time.perf_counter()
        what()
        if trainer.device.type == "cuda":
            torch.cuda.synchronize(trainer.device)
        times.append(time.perf_counter() - start)
    return median(times)


if __name__ == "__main__":
    main()
