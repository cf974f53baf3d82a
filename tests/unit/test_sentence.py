"""A status in words: the state of the node, and what to do if something is wrong."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.node.api.status import ADVICE, SEARCHING, advice, headline

RUN = {"name": "stdlib", "round": 3, "phase": "training", "trains": True}


FAMILY = RUN | {"name": "family", "experts": {"parts": 2, "finished": 0, "trains": "net"}}


@pytest.mark.parametrize(
    ("state", "peers", "runs", "said"),
    [
        ("SOLO", 0, [RUN], "This node is alone: no other peer is reachable."),
        ("SPLIT", 3, [RUN], "The swarm is split."),
        ("CONNECTED", 1, [RUN | {"phase": "finished"}], "Finished stdlib after round 3, and keeps the result."),
        ("CONNECTED", 1, [], "Connected with 1 peer, and in no run."),
        ("CONNECTED", 3, [RUN], "Connected with 3 peers: training stdlib."),
        ("CONNECTED", 3, [RUN | {"trains": False}], "Connected with 3 peers: keeping the state of stdlib."),
        (
            "CONNECTED",
            1,
            [RUN | {"worker_lost": "the worker was ended by SIGKILL; it is started again"}],
            "Connected with 1 peer: starting the worker of stdlib again.",
        ),
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
        ("CONNECTED", 1, [FAMILY, RUN | {"name": "family.net"}], "Connected with 1 peer: training family.net."),
        ("CONNECTED", 1, [FAMILY], "Connected with 1 peer: training family."),
        (
            "CONNECTED",
            1,
            [FAMILY | {"phase": "waiting", "experts": {"trains": None}}],
            "Connected with 1 peer: waiting for a part of family.",
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
    status: Any = {"state": state, "peers": peers, "runs": runs}
    assert headline(status) == said
    assert (advice(status) is None) == (state in ("CONNECTED", "IN-ROUND"))
    assert "--bootstrap" not in (advice(status) or ""), "in a run it finds the others by itself, or they come by a link"


def test_a_split_is_said_with_its_evidence() -> None:
    status: Any = {"state": "SPLIT", "evidence": "tiny: no quorum", "peers": 3, "runs": [RUN]}
    assert headline(status) == "The swarm is split: tiny: no quorum."


def test_only_a_node_in_no_run_is_told_to_start_with_an_address() -> None:
    status: Any = {"state": "SOLO", "peers": 0, "runs": []}
    assert "--bootstrap" in (advice(status) or "")
    assert advice(status | {"runs": [{"run": "ab" * 32, "name": None, "phase": "restoring"}]}) == SEARCHING


LONELY = RUN | {"members": 1, "link": "shoal2xyz", "left": []}
SEND = "Send this to whoever is to join: shoal run join shoal2xyz"
BACK = "is back by itself once its node runs again, unless it has left for good. Somebody new joins by:"
JOIN = "shoal run join shoal2xyz"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, f"Nobody else is in stdlib. {SEND}"),
        ({"left": None}, f"Nobody else is in stdlib. {SEND}"),
        ({"left": ["12D3Koo7nBFdh"]}, f"Nobody else is in stdlib: 7nBFdh has left. It {BACK} {JOIN}"),
        (
            {"left": ["12D3Koo7nBFdh", "12D3Koonu5qcu"]},
            f"Nobody else is in stdlib: 7nBFdh, nu5qcu have left. Each {BACK} {JOIN}",
        ),
        (
            {"left": [f"12D3Koomember{number}" for number in range(8)]},
            "Nobody else is in stdlib: ember0, ember1, ember2, ember3, ember4, ember5 and others have left. "
            f"Each {BACK} {JOIN}",
        ),
    ],
)
def test_who_is_alone_in_a_run_sends_its_link(changes: dict[str, Any], said: str) -> None:
    status: Any = {"state": "SOLO", "peers": 0, "runs": [LONELY | changes]}
    assert (headline(status), advice(status)) == ("This node is alone.", said)
    connected = status | {"state": "CONNECTED", "peers": 1}
    assert (headline(connected), advice(connected)) == ("Connected with 1 peer: training stdlib.", said)
    resting = status | {"runs": [RESTING | LONELY | changes | {"is_resting": True}]}
    assert (headline(resting), advice(resting)) == ("Keeps stdlib after round 3 until others are back.", said)
    tried = status | {"obstacle": "rejoining: nobody has answered yet"}
    assert (headline(tried), advice(tried)) == ("rejoining: nobody has answered yet", said)
    assert advice(status | {"paused": "the volume is used up"}) is None


def test_of_two_runs_the_one_that_is_alone_is_named_with_its_link_and_the_other_is_looked_for() -> None:
    other = RUN | {"name": "b", "members": 4}
    status: Any = {"state": "SOLO", "peers": 0, "runs": [LONELY, other]}
    assert headline(status) == "This node is alone: nobody else is in stdlib, and nobody of b is reachable."
    looks = "It looks for the others of b by itself: check that they run, and this machine's network."
    assert advice(status) == f"{looks} Nobody else is in stdlib. {SEND}"
    done: Any = status | {"runs": [LONELY, other | {"phase": "finished"}]}
    assert (headline(done), advice(done)) == ("This node is alone.", f"Nobody else is in stdlib. {SEND}")
    connected: Any = status | {"state": "CONNECTED", "peers": 1}
    assert advice(connected) == f"Nobody else is in stdlib. {SEND}"


@pytest.mark.parametrize("state", ["SOLO", "SPLIT", "CONNECTED", "IN-ROUND"])
@pytest.mark.parametrize("phase", ["training", "matching", "syncing", "finished", "failed", "restoring"])
@pytest.mark.parametrize("more", [{}, {"link": "shoal2xyz"}, {"left": ["12D3Koo7nBFdh"]}, {"is_resting": True}])
def test_nobody_who_is_in_a_run_is_told_to_start_with_bootstrap(state: str, phase: str, more: dict[str, Any]) -> None:
    for runs in ([RUN | {"phase": phase} | more], [RUN | {"phase": phase} | more, RUN]):
        for obstacle in (None, "rejoining: nobody has answered yet"):
            status: Any = {"state": state, "peers": 0, "runs": runs, "obstacle": obstacle}
            assert "--bootstrap" not in f"{headline(status)} {advice(status)}"


def test_a_split_that_leaves_one_alone_says_both() -> None:
    status: Any = {"state": "SPLIT", "peers": 0, "runs": [LONELY, LONELY | {"name": "b", "link": "shoal2b"}]}
    assert advice(status) == f"{ADVICE['SPLIT']} Nobody else is in stdlib. {SEND}; Nobody else is in b. {SEND[:-3]}b"


RESTING = RUN | {"is_resting": True, "phase": "matching"}
ALSO = RESTING | {"name": "b", "round": 5}


def test_the_first_to_be_back_says_what_it_has_tried() -> None:
    tried = "rejoining: nobody has answered yet, tried 1 peer seen before; trying again"
    status: Any = {"state": "SOLO", "peers": 0, "runs": [RESTING], "obstacle": tried, "waits": True}
    assert headline(status) == f"Keeps stdlib after round 3 until others are back ({tried})."
    assert headline(status | {"waits": False}) == tried


@pytest.mark.parametrize(
    ("runs", "obstacle", "said"),
    [
        ([RESTING], None, "Keeps stdlib after round 3 until others are back."),
        ([RESTING, ALSO], None, "Keeps stdlib after round 3 and b after round 5 until others are back."),
        ([RESTING, RUN], None, "This node is alone: no other peer is reachable."),
        ([RESTING], "not yet in the run 1f0c8a2e: no such run", "not yet in the run 1f0c8a2e: no such run"),
    ],
)
def test_the_first_to_be_back_is_told_to_wait_and_not_to_look_for_others(
    runs: list[dict[str, Any]], obstacle: str | None, said: str
) -> None:
    status: Any = {"state": "SOLO", "peers": 0, "runs": runs, "obstacle": obstacle}
    assert headline(status) == said
    assert advice(status) == (SEARCHING if RUN in runs else None)


def test_who_has_finished_all_misses_nobody() -> None:
    status: Any = {"state": "SOLO", "peers": 0, "runs": [RUN | {"phase": "finished"}]}
    assert headline(status) == "Finished stdlib after round 3, and keeps the result."
    assert advice(status) is None
    assert advice(status | {"runs": [RUN, RUN | {"phase": "finished"}]}) is not None
