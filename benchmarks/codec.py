"""The speed of each codec on one core, and its errors, compared with a plain copy in the same run.

    python benchmarks/codec.py [--mib 64] [--passes 9] [--codecs int8,topk] [--devices cpu,cuda] [--json]

A vector of normal values is encoded chunk by chunk, as in a round; each payload is checked and added to a sum, as its
owner does it. GB/s are of fp32 values, read or added. Each chunk counts with its fastest pass, because whatever else
runs on the machine only adds. `copy` writes each chunk to one place, and is the line that the ratios are of. Below the
table stands what is asked of a codec on one core.

On a GPU the vector is one chunk, because each call has its price; `encode` and `copy` end with the payload in the
machine's memory. Sums are made on the CPU, on every device, so that all machines get the same bits from a payload.
Errors are relative to the standard deviation of the values.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial

import torch
from torch import Tensor

from shoal.node.lab.codecs import CODECS
from shoal.protocol.tensors.compression import Codec, Payload

CHUNK = 1 << 18  # values: 1 MiB
SEED = 1


TARGETS = {("int8", "encode"): 6.0, ("int8", "add"): 10.0, ("topk", "encode"): 1.2}  # GB/s


@dataclass(frozen=True, slots=True)
class Result:
    """One line of the table; `copy` is a codec that does nothing."""

    device: str
    codec: str
    bits: float  # per value
    encode: float  # GB/s of fp32
    add: float | None
    max_error: float
    rms_error: float


def main() -> None:
    """Print a table, or a line of JSON per row, for each device."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=64, help="of fp32 values")
    parser.add_argument("--passes", type=int, default=9)
    parser.add_argument("--codecs", default=",".join(CODECS))
    parser.add_argument("--devices", default="cpu,cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    values = torch.randn(options.mib << 18, generator=torch.Generator().manual_seed(SEED))
    for device in options.devices.split(","):
        codecs = [CODECS[name] for name in options.codecs.split(",")]
        show(measure(values.to(device), codecs, options.passes), options.json)


def measure(values: Tensor, codecs: Sequence[Codec], passes: int) -> list[Result]:
    """Measures these codecs on one device; the copy comes first."""
    size = CHUNK if values.device.type == "cpu" else len(values)
    chunks = [values[start : start + size] for start in range(0, len(values), size)]
    return [copying(chunks, passes), *(coding(codec, chunks, passes) for codec in codecs)]


def copying(chunks: Sequence[Tensor], passes: int) -> Result:
    """The speed of a plain copy."""
    place = torch.empty(chunks[0].shape)
    speed = rate(chunks, [partial(place[: len(each)].copy_, each) for each in chunks], passes)
    return Result(name_of(chunks), "copy", 32, speed, None, 0, 0)


def coding(codec: Codec, chunks: Sequence[Tensor], passes: int) -> Result:
    """The result of one codec."""
    payloads = [codec.encode(each) for each in chunks]
    encode = rate(chunks, [partial(codec.encode, each) for each in chunks], passes)
    add = None
    if chunks[0].device.type == "cpu":
        total = torch.zeros(chunks[0].shape)
        jobs = [
            partial(counted, codec, total[: len(each)], payload) for each, payload in zip(chunks, payloads, strict=True)
        ]
        add = rate(chunks, jobs, passes)
    errors = [codec.decode(payload, len(each)) - each.cpu() for each, payload in zip(chunks, payloads, strict=True)]
    error = torch.cat(errors)
    bits = 8 * sum(map(len, payloads)) / len(error)
    return Result(
        name_of(chunks), codec.name, bits, encode, add, error.abs().max().item(), error.square().mean().sqrt().item()
    )


def counted(codec: Codec, total: Tensor, payload: Payload) -> None:
    """The owner's work on a contribution."""
    codec.peak(payload, len(total))
    codec.add(total, payload)


def rate(chunks: Sequence[Tensor], jobs: Sequence[Callable[[], object]], passes: int) -> float:
    """GB/s of all jobs, each counted with its fastest pass."""
    best = [float("inf")] * len(jobs)
    for _ in range(passes):
        for index, job in enumerate(jobs):
            start = time.perf_counter()
            job()
            best[index] = min(best[index], time.perf_counter() - start)
    return sum(4 * len(each) for each in chunks) / sum(best) / 1e9


def name_of(chunks: Sequence[Tensor]) -> str:
    """The name of the device that holds the chunks."""
    device = chunks[0].device
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def show(results: Sequence[Result], as_json: bool) -> None:
    """The rows of one device, as JSON or as a table for a document."""
    if as_json:
        for each in results:
            print(json.dumps(asdict(each)), flush=True)
        return
    copy = results[0].encode
    print(
        f"\n| on {results[0].device} | bits | encode | / copy | decode and add | / copy | largest error | RMS error |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for each in results:
        add = f"{each.add:.1f} | {each.add / copy:.2f}" if each.add else " | "
        speed = f"{each.encode:.1f} | {each.encode / copy:.2f} | {add}"
        print(f"| {each.codec} | {each.bits:.2f} | {speed} | {each.max_error:.2g} | {each.rms_error:.2g} |", flush=True)

    if results[0].device == "cpu":
        print()
        for each in results:
            show_targets(each, copy)


def show_targets(result: Result, copy: float) -> None:
    """Prints whether the codec reaches its targets."""
    for (codec, work), target in TARGETS.items():
        speed = getattr(result, work)
        if codec == result.codec:
            word = "reached" if speed >= target else "missed"
            print(f"{codec} {work}: {speed:.2f} GB/s, {speed / copy:.2f} of a copy; {target} asked: {word}")


if __name__ == "__main__":
    main()
