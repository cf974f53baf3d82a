"""One peer of hivemind's averaging that goes on when another one dies; see churn.py and allreduce_hivemind.py."""

from __future__ import annotations

import hashlib
import time

import hivemind
import torch
from hivemind.utils import get_dht_time
from kit.peer import Fleet
from kit.vectors import vector

FIND_A_GROUP = 3.0  # seconds
PATIENCE = 60.0  # seconds for an average; its own timeouts stay as they are, and are shorter


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
        min_group_size=2,
        min_matchmaking_time=FIND_A_GROUP,
        request_timeout=2.0,
        start=True,
    )
    fleet.say(joined=True)
    while (number := fleet.next_round()) is not None:
        mine = torch.from_numpy(vector(task.seed, number, task.rank, task.elements))
        with averager.get_tensors() as tensors:
            tensors[0].copy_(mine)
        when = get_dht_time() + FIND_A_GROUP
        control = averager.step(wait=False, require_trigger=True, scheduled_time=when, allow_retries=False)
        while control.stage.name not in ("AWAITING_TRIGGER", "FINISHED"):
            time.sleep(0.01)
        fleet.wait_for_go()
        submitted, failure = time.monotonic(), ""
        control.allow_allreduce()
        try:
            control.result(timeout=PATIENCE)
        except Exception as error:  # whatever it is: the average of this peer has failed
            failure = f"{type(error).__name__}: {error}"
        held = time.monotonic()
        with averager.get_tensors() as tensors:
            digest = hashlib.sha256(tensors[0].numpy().tobytes()).hexdigest()
        fleet.say(submitted=submitted, held=held, error=0.0, carried=0, digest=digest, failure=failure)
    averager.shutdown()
    dht.shutdown()


if __name__ == "__main__":
    main()
