"""A run in a node's status: one sentence on what holds it up, short names of peers, and counts."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from shoal.node.run.meters import Meters
from shoal.node.run.records import CommitLog
from shoal.node.run.run import Run
from shoal.node.run.view import (
    all_rows,
    branch,
    is_active,
    meters,
    needs_others,
    seconds_left,
    waiting_for,
    without_quorum,
)
from shoal.protocol.base.ids import NO_DIGEST, PeerId, RunId
from shoal.protocol.net.measure.rates import Traffic

PEERS = [PeerId("12D3KooWGPiRT7pkQBC3uBsSRnwSuDxfheVkQ4ibQ6w8Xy7nBFdh"), PeerId("12D3KooWLg7BUciNACUE9mM5pL31nu5qcu")]

BASE = SimpleNamespace(round=3)


def run(
    phase: str = "training",
    peers: list[PeerId] = PEERS,
    trouble: str = "",
    record: str = "",
    downloaded: tuple[int, int] = (0, 0),
    left: float | None = None,
    away: Sequence[str] = (),
    is_member: bool = True,
    is_below: bool = False,
    goes_on_in: float | None = None,
    left_behind: tuple[Any, list[str]] | None = None,
    waits_for_ever: bool = False,
    seeks_branch: bool = False,
    yields_to: bytes = NO_DIGEST,
    elsewhere: Sequence[str] = (),
    **changes: Any,
) -> Run:
    """A run that has committed three rounds."""
    usual: dict[str, Any] = {"failure": "", "obstacle": "", "is_finished": False}
    members = [SimpleNamespace(peer=peer) for peer in ("silent", *PEERS, "far")]
    register = SimpleNamespace(voters=("far", *PEERS), members=members, is_over=False, yields_to=yields_to)
    here = [peer for peer in PEERS if peer not in away]
    log = SimpleNamespace(
        here=here,
        deciding=away or register.voters,
        can_decide=lambda peers: len(peers) >= 2,
        survivors=PEERS,
        seeks_branch=seeks_branch,
        is_elsewhere=lambda peer: peer in elsewhere,
        is_member=is_member,
        is_below_anchor=is_below,
        register=register,
        goes_on_in=goes_on_in,
        left_behind=left_behind,
        waits_for_ever=waits_for_ever,
    )
    membership = SimpleNamespace(is_alive=lambda peer: peer in PEERS)
    member = SimpleNamespace(
        me="me",
        awaits_quorum=bool(away) or yields_to != NO_DIGEST,
        phase=phase,
        waiting_for=lambda: peers,
        progress=lambda: downloaded,
        seconds_left=lambda now: left,
        awaited_voters=away,
        log=log,
        membership=membership,
    )
    parts = {
        "training": SimpleNamespace(trouble=trouble),
        "driver": SimpleNamespace(trouble=record, now=lambda: 0.0),
        "member": member,
        "outer": SimpleNamespace(committed=SimpleNamespace(current=BASE)),
    }
    return cast(Run, SimpleNamespace(**usual | parts | changes))


@pytest.mark.parametrize(
    ("run", "sentence"),
    [
        (run(peers=[]), None),
        (run("reducing"), "round 4 waits for 7nBFdh, nu5qcu"),
        (
            run("matching", peers=[], obstacle="1 of at least 2 members are here"),
            "round 4 waits: 1 of at least 2 members are here",
        ),
        (
            run("matching", obstacle="no quorum with 1 of 2 voters absent (7nBFdh)"),
            "round 4 waits: no quorum with 1 of 2 voters absent (7nBFdh)",
        ),
        (run("reducing", obstacle="over by now"), "round 4 waits for 7nBFdh, nu5qcu"),
        (run("syncing", downloaded=(12, 48)), "the state is being downloaded: 12 of 48 chunks are here"),
        (
            run("syncing", downloaded=(12, 48), left=2100.0),
            "the state is being downloaded: 12 of 48 chunks are here, and the rest takes about 35 min",
        ),
        (run("syncing", downloaded=(0, 0)), None),
        (
            run("syncing", is_member=False, is_below=True),
            "the log here ends before the entry that the run's link names: this node waits for a member that has more",
        ),
        (
            run("syncing", is_member=False, is_below=True, seeks_branch=True),
            "the log here ends before the entry that the run's link names: this node waits for a member that has more, "
            "or until one without more was here for a minute, as the link is of another branch of the log",
        ),
        (run("syncing", is_member=False), "the run's voters must admit this node: 2 of 3 are here; away: far"),
        (run(trouble=(lost := "the worker was ended by SIGKILL; it is started again")), lost),
        (run("deciding", record=(full := "what must not be forgotten cannot be written: No space left")), full),
        (run("reducing", failure="the disk is full"), None),
        (run("reducing", is_finished=True), None),
        (run("matching", training=None, peers=[], obstacle="why"), "round 4 waits: why"),
        (
            run("reducing", away=["12D3KooWabcdef"], waits_for_ever=True),
            "the run waits until a quorum of its 3 voters is back; away: abcdef; "
            "only `shoal run continue` goes on without them",
        ),
        (
            run("reducing", away=[PEERS[0]], goes_on_in=240.0),
            "the run waits until a quorum of its 3 voters is back; back without a vote: 7nBFdh; "
            "it goes on without them in 4 min, or at once by `shoal run continue`",
        ),
        (
            run("reducing", away=["12D3KooWabcdef", "me", *PEERS], elsewhere=PEERS, goes_on_in=240.0),
            "the run waits until a quorum of its 3 voters is back; away: abcdef; back without a vote: me; "
            "on another branch of the log: 7nBFdh, nu5qcu; "
            "it goes on without them in 4 min, or at once by `shoal run continue`",
        ),
        (
            run("reducing", yields_to=b"branch", goes_on_in=240.0),
            "the run has yielded to another branch of its log, and nobody who is on that is to be found; "
            "it goes on without them in 4 min, or at once by `shoal run continue`",
        ),
        (
            run("reducing", away=["12D3KooWabcdef"], goes_on_in=240.0),
            "the run waits until a quorum of its 3 voters is back; away: abcdef; "
            "it goes on without them in 4 min, or at once by `shoal run continue`",
        ),
        (
            run("syncing", downloaded=(0, 0), away=["12D3KooWabcdef"]),
            "the run waits until a quorum of its 3 voters is back; away: abcdef; "
            "it goes on without them after a while, or at once by `shoal run continue`",
        ),
        (
            run("reducing", away=["12D3KooWabcdef"], goes_on_in=0.0),
            "the run waits until a quorum of its 3 voters is back; away: abcdef; "
            "it goes on without them once somebody who is here has the state",
        ),
    ],
)
def test_sentences(run: Run, sentence: str | None) -> None:
    assert waiting_for(run) == sentence


@pytest.mark.parametrize(
    ("left_behind", "sentence"),
    [
        (None, None),
        ((0, []), None),
        ((None, ["12D3KooWabcdef"]), "could decide nothing, and goes on without abcdef"),  # of replicas
        ((0, ["12D3KooWabcdef"]), "could decide nothing after round 0, and goes on without abcdef"),
        ((7, ["12D3KooWabcdef"]), "could decide nothing after round 7, and goes on without abcdef"),
    ],
)
def test_of_a_branch_it_is_said_since_when_and_who_is_not_back(
    left_behind: tuple[int | None, list[str]] | None, sentence: str | None
) -> None:
    if left_behind is None:
        assert branch(run()) is None
        return
    round, away = left_behind
    before = SimpleNamespace(parts=[SimpleNamespace(round=round)] if round is not None else [])
    said = branch(run(left_behind=(before, away)))
    assert said == (sentence and f"{sentence}, who may come back")


@pytest.mark.parametrize(
    ("others", "changes", "expected"),
    [
        (PEERS, {}, True),
        ([], {}, False),  # it rests, or waits
        (PEERS, {"is_finished": True}, False),
        (PEERS, {"failure": "the disk is full"}, False),
    ],
)
def test_warnings_are_of_runs_with_rounds(others: list[PeerId], changes: dict[str, Any], expected: bool) -> None:
    member = SimpleNamespace(membership=SimpleNamespace(alive=lambda: others))
    assert is_active(run(member=member, **changes)) is expected


@pytest.mark.parametrize(
    ("keeps_vote", "others", "is_enough", "sentence"),
    [
        (False, PEERS, True, ""),
        (True, [], True, ""),
        (True, PEERS, True, "can decide nothing until far are back"),
        (True, PEERS, False, "can decide nothing any more"),
    ],
)
def test_who_leaves_for_good_is_told_whom_that_stops(
    keeps_vote: bool, others: list[PeerId], is_enough: bool, sentence: str
) -> None:
    log = SimpleNamespace(register=SimpleNamespace(voters=("me", "far", *PEERS)), is_quorum=lambda peers: is_enough)
    membership = SimpleNamespace(is_alive=lambda peer: peer in PEERS)
    member = SimpleNamespace(me="me", keeps_vote=keeps_vote, log=log, membership=membership)
    left = SimpleNamespace(member=member, others=lambda: others, manifest=SimpleNamespace(name="tiny"))
    said = Run.stuck_without_us.fget(left)  # type: ignore[attr-defined]
    assert said.endswith(sentence)
    assert bool(said) is bool(sentence)


ALONE: Any = {"members": 1, "phase": "training", "is_creator": True, "left": []}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, True),
        ({"phase": "matching"}, True),
        ({"members": 2}, False),
        ({"phase": "finished"}, False),
        ({"phase": "failed"}, False),
        ({"is_creator": False}, False),  # it looks for those by whom it came
        ({"is_creator": False, "left": ["bob"]}, True),  # who have left it behind
        ({"members": None, "phase": "restoring", "is_creator": None, "left": None}, False),
    ],
)
def test_whose_link_is_to_be_sent_to_others(changes: dict[str, Any], expected: bool) -> None:
    assert needs_others(ALONE | changes) is expected


def test_a_founder_whose_members_are_out_of_reach_is_not_told_to_look_for_new_ones() -> None:
    assert not needs_others(ALONE, has_lost=True)


def test_the_run_of_a_familys_part_is_trained_alone_and_waits_for_nobody() -> None:
    part, family = ALONE | {"run": "aa"}, ALONE | {"run": "ff"}
    families = SimpleNamespace(rows=lambda: [part, family], is_part=lambda run: run == "aa")
    runs: Any = SimpleNamespace(families=families, open={}, restoring=[], broken={}, restore_obstacles={}, paused="")
    runs.link = lambda run: {"link": f"shoal2{run}"}
    links = {each["run"]: each["link"] for each in all_rows(runs, cast(Any, None))}
    assert links == {"aa": None, "ff": "shoal2ff"}


def test_before_a_run_goes_on_without_a_quorum_all_who_are_left_behind_are_named() -> None:
    """Also members without a vote; and why, where those who are missing are here, without their votes."""
    manifest = SimpleNamespace(name="tiny", method=SimpleNamespace(has_replicas=False))
    found = without_quorum(run("reducing", away=[PEERS[0]], id=RunId(bytes(32)), manifest=manifest))
    assert found["why"] == "the run waits until a quorum of its 3 voters is back; back without a vote: 7nBFdh"
    assert (found["round"], found["here"], found["away"]) == (3, PEERS, ["far", "silent"])


def test_in_a_run_of_replicas_whose_exchanges_wait_for_nobody_the_voters_that_are_away_are_named_as_well() -> None:
    manifest = SimpleNamespace(name="tiny", method=SimpleNamespace(has_replicas=True))
    waits = run("reducing", away=["far"], id=RunId(bytes(32)), manifest=manifest)
    waits.member.awaits_quorum, waits.member.awaited_voters = False, []  # type: ignore[misc]
    assert without_quorum(waits)["why"] == "the run waits until a quorum of its 3 voters is back; away: far"


def test_a_run_is_active_until_its_last_round_and_its_age_counts_from_the_joining() -> None:
    before = time.time()
    parts: dict[str, Any] = {"id": RunId(bytes(32)), "commits": CommitLog(), "meters": Meters()}
    for finished in (False, True):
        shown = meters(run(is_finished=finished, **parts), Traffic())
        assert shown["active"] is not finished
        assert before - 1 <= shown["last_commit"] <= time.time() + 1


@pytest.mark.parametrize(
    ("away", "is_member", "lacks"), [([], True, False), (PEERS[:1], True, True), (PEERS[:1], False, False)]
)
def test_a_member_counts_who_can_decide(away: list[PeerId], is_member: bool, lacks: bool) -> None:
    parts: dict[str, Any] = {"id": RunId(bytes(32)), "commits": CommitLog(), "meters": Meters()}
    shown = meters(run(away=away, is_member=is_member, **parts), Traffic())
    assert shown["lacks_quorum"] is lacks


@pytest.mark.parametrize(
    ("was_stopped", "has_met", "alive", "rounds_since", "resting"),
    [
        (True, False, [], 0, True),
        (True, True, PEERS, 0, False),
        (True, True, [], 0, False),  # others were here, and are gone again
        (True, False, [], 1, False),  # it has gone on, alone
        (False, False, [], 0, False),  # it is new here, or was killed
    ],
)
def test_resting_is_over_once_others_have_been_there(
    was_stopped: bool, has_met: bool, alive: list[PeerId], rounds_since: int, resting: bool
) -> None:
    commits = SimpleNamespace(records=[SimpleNamespace(round=3 + each) for each in range(rounds_since)])
    state = SimpleNamespace(current=SimpleNamespace(round=3 + rounds_since))
    ours = run(_was_stopped=was_stopped, _has_met=has_met, is_alone=not alive, commits=commits, committed=state)
    assert Run.is_resting.fget(ours) is resting  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("last", "round", "pace", "expected"),
    [(40, 30, 2.5, 25.0), (40, 40, 2.5, 0.0), (40, 41, 2.5, 0.0), (None, 30, 2.5, None), (40, 0, 0.0, None)],
)
def test_how_long_a_run_goes_on(last: int | None, round: int, pace: float, expected: float | None) -> None:
    assert seconds_left(last, round, pace) == expected
