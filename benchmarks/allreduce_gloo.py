"""One peer of gloo's all-reduce (torch.distributed): plain TCP, no encryption, no vote; a peer that dies ends it."""

from __future__ import annotations

import tempfile
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from kit.loopback import carried
from kit.peer import Fleet
from kit.vectors import mean_error, vector

PATIENCE = timedelta(seconds=120)


def main() -> None:
    """Be a peer until there are no more rounds."""
    torch.set_num_threads(1)
    fleet = Fleet()
    task = fleet.task
    with tempfile.TemporaryDirectory() as folder:
        where = fleet.meet(f"file://{folder}/store")[0]  # in the folder of rank 0, which outlives the others' use of it
        dist.init_process_group("gloo", init_method=where, rank=task.rank, world_size=task.peers, timeout=PATIENCE)
        fleet.say(joined=True)
        while (number := fleet.next_round()) is not None:
            _lap(fleet, number)
        dist.destroy_process_group()


def _lap(fleet: Fleet, number: int) -> None:
    task = fleet.task
    mean = torch.from_numpy(vector(task.seed, number, task.rank, task.elements))
    fleet.wait_for_go()
    submitted = time.monotonic()
    dist.all_reduce(mean)
    mean /= task.peers
    held, bytes = time.monotonic(), carried()
    error = mean_error(mean.numpy(), task.seed, number, task.peers)
    fleet.say(submitted=submitted, held=held, carried=bytes, error=error)


if __name__ == "__main__":
    main()
