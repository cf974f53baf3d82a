"""A status in words: where the node stands, and what to do if something is wrong."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.node.sentence import advice, headline

RUN = {"name": "stdlib", "round": 3, "phase": "training", "trains": True}


@pytest.mark.parametrize(
    ("state", "peers", "runs", "said"),
    [
        ("SOLO", 0, [RUN], "This node is alone: no other peer is reachable."),
        ("SPLIT", 3, [RUN], "The swarm is split: too few of its last members are reachable."),
        ("CONNECTED", 1, [], "Connected with 1 peer, and in no run."),
        ("CONNECTED", 3, [RUN], "Connected with 3 peers: training stdlib."),
        ("CONNECTED", 3, [RUN | {"trains": False}], "Connected with 3 peers: keeping the state of stdlib."),
        (
            "CONNECTED",
            2,
            [
                RUN | {"phase": "syncing"},
                RUN | {"name": "b", "phase": "failed"},
                RUN | {"name": "c", "phase": "finished"},
                {"run": "ab" * 32, "name": None, "phase": "restoring"},
            ],
            "Connected with 2 peers: catching up with stdlib, b has failed on this node, c is finished, "
            "entering abababab again.",
        ),
        ("IN-ROUND", 2, [RUN, RUN | {"name": "b", "phase": "reducing"}], "Averaging round 4 of b with the others."),
        (
            "IN-ROUND",
            2,
            [RUN, RUN | {"name": "b", "phase": "matching"}],
            "Ready for round 4 of b, waiting for the others.",
        ),
    ],
)
def test_headlines(state: str, peers: int, runs: list[dict[str, Any]], said: str) -> None:
    status = {"state": state, "peers": peers, "runs": runs}
    assert headline(status) == said
    assert (advice(status) is None) == (state in ("CONNECTED", "IN-ROUND"))
