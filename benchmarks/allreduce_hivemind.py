"""One peer of hivemind's averaging, in a Python of its own (hivemind pins other versions of what Shoal uses).

`step` finds a group first, which takes hivemind a part of a second or more; as its published figures leave that out,
we do too: a group is formed with `require_trigger`, and the clock runs from the trigger.
"""

from __future__ import annotations

import time

import hivemind
import torch
from hivemind.compression import Float16Compression, NoCompression, Uniform8BitQuantization
from hivemind.utils import get_dht_time
from kit.loopback import carried
from kit.peer import Fleet
from kit.vectors import mean_error, vector

FIND_A_GROUP = 3.0  # seconds
CODECS = {"fp32": NoCompression, "fp16": Float16Compression, "int8": Uniform8BitQuantization}


def main() -> None:
    """Be a peer until there are no more rounds."""
    torch.set_num_threads(1)
    fleet = Fleet()
    task = fleet.task
    first = hivemind.DHT(start=True, host_maddrs=["/ip4/127.0.0.1/tcp/0"]) if task.rank == 0 else None
    addresses = fleet.meet(str(first.get_visible_maddrs()[0]) if first else "")
    dht = first or hivemind.DHT(start=True, host_maddrs=["/ip4/127.0.0.1/tcp/0"], initial_peers=addresses[:1])
    averager = hivemind.averaging.DecentralizedAverager(
        [torch.zeros(task.elements)],
        dht,
        prefix="bench",
        target_group_size=task.peers,
        min_group_size=task.peers,
        min_matchmaking_time=FIND_A_GROUP,
        request_timeout=2.0,
        compression=CODECS[task.codec](),
        start=True,
    )
    fleet.say(joined=True)
    while (number := fleet.next_round()) is not None:
        mine = torch.from_numpy(vector(task.seed, number, task.rank, task.elements))
        with averager.get_tensors() as tensors:
            tensors[0].copy_(mine)
        control = averager.step(wait=False, require_trigger=True, scheduled_time=get_dht_time() + FIND_A_GROUP)
        while control.stage.name not in ("AWAITING_TRIGGER", "FINISHED"):
            time.sleep(0.01)
        fleet.wait_for_go()
        submitted = time.monotonic()
        control.allow_allreduce()
        group = control.result(timeout=120)
        held, bytes = time.monotonic(), carried()
        with averager.get_tensors() as tensors:
            error = mean_error(tensors[0].numpy(), task.seed, number, task.peers)
        error = error if len(group) == task.peers else float("inf")
        fleet.say(submitted=submitted, held=held, carried=bytes, error=error)
    averager.shutdown()
    dht.shutdown()


if __name__ == "__main__":
    main()
