"""Where the time of one all-reduce goes: the cost of each kind of work by itself, for as many bytes as a round needs.

    .venv/bin/python benchmarks/allreduce_budget.py --peers 4 --mib 256

First rounds of real peers (as in allreduce.py), of which the processor's time of all peers together is taken. Then
each kind of work alone, on one core, with the same functions and the same chunks: sealing and opening, a plain TCP
connection over loopback, the checks for NaN, additions, hashes, copies. What is left over is Python, the scheduler,
fresh memory, and the sharing of caches; `waiting` is time of the cores that was not used.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import sys
import threading
import time
from collections.abc import Callable

import numpy as np
import torch
from kit.fleet import Fleet, script
from kit.peer import Task

from shoal.protocol.averaging.chunks import fitting_bytes
from shoal.protocol.base.ids import result_hash
from shoal.protocol.net.bulk.framing import PREFIX
from shoal.protocol.net.bulk.sealing import Opener, Sealer
from shoal.protocol.tensors.compression import codec

SEED = 7
SAMPLE = 128 << 20  # bytes that each kind of work is tried with
ANNOUNCED = bytes(PREFIX.size)  # before each sealed head
fp32 = codec("fp32")


def rounds(peers: int, mib: int, number: int) -> tuple[float, float]:
    """Median (seconds, processor seconds of all peers) of a round."""
    tasks = [Task(rank, peers, mib << 18, "fp32", SEED) for rank in range(peers)]
    found = []
    with Fleet(script("allreduce_shoal.py", sys.executable), tasks, 180.0) as fleet:
        fleet.gather()
        for round in range(1, number + 2):
            lap = fleet.lap(round)
            found.append((lap.seconds, lap.cpu))
    return tuple(statistics.median(column) for column in zip(*found[1:], strict=True))


def kinds(chunk: int) -> dict[str, Callable[[memoryview], object]]:
    """The kinds of work on a chunk, by name."""
    total, copy = torch.zeros(chunk // 4), bytearray(chunk)
    sealer = Sealer(bytes(16))

    def copied(piece: memoryview) -> None:
        memoryview(copy)[:] = piece

    return {
        "sealing": lambda piece: sealer.seal(ANNOUNCED, b"head", piece),
        "checks for NaN": lambda piece: fp32.peak(piece, chunk // 4),
        "additions": lambda piece: fp32.add(total, piece),
        "hashes": lambda piece: result_hash(b"mask", piece),
        "copies": copied,
    }


def cost(work: Callable[[memoryview], object], vector: memoryview, chunk: int) -> float:
    """Processor seconds for a byte."""
    pieces = [vector[start : start + chunk] for start in range(0, len(vector), chunk)]
    work(pieces[0])
    begin = time.process_time()
    for piece in pieces:
        work(piece)
    return (time.process_time() - begin) / len(vector)


def opening(vector: memoryview, chunk: int) -> float:
    """Processor seconds for decrypting a byte."""
    into, seconds = memoryview(bytearray(chunk)), 0.0
    sealer, opener = Sealer(bytes(16)), Opener(bytes(16))
    for start in range(0, len(vector), chunk):
        piece = vector[start : start + chunk]
        sealed = sealer.seal(ANNOUNCED, b"head", piece)
        at = len(sealed) - len(piece) - 16
        begin = time.process_time()
        opener.head(sealed[len(ANNOUNCED) : at], ANNOUNCED)
        opener.payload(sealed[at:], into)
        seconds += time.process_time() - begin
    return seconds / len(vector)


def carrying(vector: memoryview, chunk: int) -> float:
    """Processor seconds of both ends for a byte over plain TCP."""
    listener = socket.create_server(("127.0.0.1", 0))
    into, left = bytearray(chunk), len(vector)

    def read() -> None:
        end = listener.accept()[0]
        nonlocal left
        while left:
            left -= end.recv_into(into, min(chunk, left), socket.MSG_WAITALL)
        end.close()

    reader = threading.Thread(target=read)
    reader.start()
    with socket.create_connection(listener.getsockname()) as end:
        begin = time.process_time()
        for start in range(0, len(vector), chunk):
            end.sendall(vector[start : start + chunk])
        reader.join()
    listener.close()
    return (time.process_time() - begin) / len(vector)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=int, default=4)
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    seconds, cpu = rounds(options.peers, options.mib, options.rounds)
    whole, away = options.mib << 20, (options.mib << 20) * (options.peers - 1) // options.peers
    chunk = fitting_bytes(whole // 4, fp32.bytes_for)
    vector = np.random.default_rng(SEED).random(SAMPLE // 4, np.float32).view(np.uint8).data
    each = {name: cost(work, vector, chunk) for name, work in kinds(chunk).items()}
    sealed = 2 * away  # of a peer: contributions to other owners, and the means of its own chunks to all others
    bytes_of = {
        "sealing": sealed,
        "checks for NaN": whole + away,  # what is added, and the means of others
        "additions": away,
        "hashes": whole,
        "copies": whole + (whole - away),  # into the result, and of the first contribution to each chunk
    }
    rows = {name: each[name] * size * options.peers for name, size in bytes_of.items()}
    rows["opening"] = opening(vector, chunk) * sealed * options.peers
    rows["sockets"] = carrying(vector, chunk) * sealed * options.peers
    cores = len(os.sched_getaffinity(0))
    rows["all else"] = cpu - sum(rows.values())
    rows["waiting"] = max(0.0, cores * seconds - cpu)
    print(f"{options.peers} x {options.mib} MiB: {seconds:.2f} s, {cpu:.2f} processor seconds on {cores} cores\n")
    print("| | processor seconds | of all |\n|---|---|---|")
    for name, spent in sorted(rows.items(), key=lambda row: -row[1]):
        print(f"| {name} | {spent:.2f} | {spent / (cores * seconds):.0%} |")


if __name__ == "__main__":
    main()
