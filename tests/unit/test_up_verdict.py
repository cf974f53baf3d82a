"""Rounds as many peers report them, what counts as a problem, and how problems are worded."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from shoal.node.base.options import UpOptions
from shoal.node.client.report.story import Ledger
from shoal.node.client.up.display import LineDisplay, cells, human_bytes, make_display, peer_table
from shoal.node.client.up.measuring import References, Replicas
from shoal.node.client.up.peers import LocalPeer
from shoal.node.client.up.plan import builtin_manifest, make_plan
from shoal.node.client.up.verdict import Finding, PeerEnd, as_json, in_words, problems
from shoal.node.manifest.method import MethodSpec

PARAMETERS = 1000


def record(number: int, **changes: Any) -> dict[str, Any]:
    usual = {"round": number, "entry": 5, "members": 4, "contributors": 4, "digest": f"{number:064x}"}
    return usual | {"seconds": 0.5, "bytes": 6000, "took_part": True} | changes


@pytest.fixture
def good() -> Finding:
    """Twelve rounds in which peer-4 died in the fourth and peer-5 came."""
    ledger = Ledger()
    for name, known in {"peer-1": 12, "peer-2": 12, "peer-3": 12, "peer-4": 3}.items():
        ledger.add(name, [record(number, contributors=3 if number == 4 else 4) for number in range(1, known + 1)])
    ledger.add(
        "peer-5",
        [record(number, bytes=6000 if number > 6 else 100, took_part=number > 6) for number in range(6, 13)],
    )
    same = dict(round=12, digest="ab" * 32, file_hash="cd" * 32)
    peers = (
        *(PeerEnd(f"peer-{number}", "finished", **same) for number in (1, 2, 3)),  # type: ignore[arg-type]
        PeerEnd("peer-4", "killed", 3, "ef" * 32),
        PeerEnd("peer-5", "joined", **same, first_round=ledger.first_round_of("peer-5")),  # type: ignore[arg-type]
    )
    plan = make_plan(UpOptions(), Path("/out"), builtin_manifest())
    return Finding(plan, ledger, peers, PARAMETERS, 4096, initial_loss=5.0, final_loss=2.0, validation_tokens=262_144)


def test_reports_are_merged_by_round() -> None:
    ledger = Ledger()
    assert ledger.add("a", [record(1)]) == [record(1)]
    assert ledger.add("a", [record(1), record(2, bytes=5999)]) == [record(2, bytes=5999)]
    ledger.add("b", [record(1, bytes=4000, seconds=9.0)])
    ledger.add("a", [record(2, bytes=6000)])
    first, second = ledger.rounds()
    assert (first.bytes, first.seconds, second.bytes) == (10_000, 0.5, 6000)
    assert ledger.disputed() == []
    ledger.add("b", [record(2, digest="00")])
    assert ledger.disputed() == [2]


def test_bytes_per_parameter_count_those_that_took_part(good: Finding) -> None:
    assert good.ledger.bytes_per_parameter_per_round(PARAMETERS) == 6.0
    assert good.ledger.first_round_of("peer-5") == 7
    assert Ledger().bytes_per_parameter_per_round(PARAMETERS) == 0.0


def test_a_good_play_has_no_problem(good: Finding) -> None:
    assert problems(good) == []
    words = "\n".join(in_words(good))
    assert "12 of 12 rounds committed; a member sent" in words
    assert "round 4; that round committed all the same, with 3 of its 4 members" in words
    assert "the first round that it took part in was round 7" in words
    assert "All 4 live peers hold the same state" in words
    assert "The loss was measured with 262,144 tokens that were held out." in words
    assert as_json(good)["val_tokens"] == 262_144


def test_other_bytes_in_a_file_are_a_problem(good: Finding) -> None:
    odd = replace(good.peers[1], file_hash="00" * 32)
    finding = replace(good, peers=(good.peers[0], odd, *good.peers[2:]))
    assert problems(finding) == ["the live peers do not hold the same state"]
    assert "PROBLEM: the live peers" in "\n".join(in_words(finding))


def test_replicas_need_not_be_equal_before_the_end_and_are_told_apart(good: Finding) -> None:
    ledger = Ledger()
    for name, digest, partner in (("peer-1", "01", "B"), ("peer-2", "02", "A"), ("peer-3", "03", None)):
        ledger.add(name, [record(1, digest=digest, partner=partner, lapse="" if partner else "bye")])
    assert ledger.disputed() == []
    assert ledger.exchanges() == 1
    noloco = good.plan.manifest.model_copy(update={"method": MethodSpec(name="noloco")})
    plan = replace(good.plan, manifest=noloco)
    finding = replace(good, plan=plan, ledger=ledger, replicas=Replicas((2.0, 2.5), 1.9, agreed=1.8))
    assert problems(finding) == []
    words = "\n".join(in_words(finding))
    assert "2 replicas: validation loss 2.250 on average, 0.500 from the best to the worst" in words
    assert "1 exchanges in 1 rounds" in words
    assert as_json(finding)["replicas"] == {
        "each": [2.0, 2.5],
        "mean": 2.25,
        "spread": 0.5,
        "merged": 1.9,
        "agreed": 1.8,
    }


def test_replicas_beside_a_state_do_not_take_its_place(good: Finding) -> None:
    finding = replace(good, replicas=Replicas((2.25, 2.5), 2.125, agreed=2.0))
    words = "\n".join(in_words(finding))
    assert "All 4 live peers hold the same state" in words
    assert "their mean, merged.safetensors, has 2.125, the state that all agree on 2.000." in words
    assert "12 of 12 rounds committed" in words
    assert as_json(finding)["replicas"]["agreed"] == 2.0
    odd = replace(good.peers[1], file_hash="00" * 32)
    assert problems(replace(finding, peers=(good.peers[0], odd, *good.peers[2:]))), "the states must be equal still"


@pytest.mark.parametrize("loss", [4.9, float("nan"), float("inf")])
def test_learning_too_little_is_a_problem(good: Finding, loss: float) -> None:
    finding = replace(good, final_loss=loss)
    assert len(problems(finding)) == 1
    assert json.loads(json.dumps(as_json(finding), allow_nan=False))["val_loss"] in (4.9, None)


def test_a_death_that_did_not_happen_is_a_problem(good: Finding) -> None:
    finding = replace(good, peers=tuple(each for each in good.peers if each.outcome != "killed"))
    assert problems(finding) == ["peer-4 was to be killed in the all-reduce of round 4 and was not"]


def test_different_digests_for_a_round_are_a_problem(good: Finding) -> None:
    good.ledger.reports[5]["peer-2"] = record(5, digest="00" * 32)
    assert problems(good) == ["peers report different digests for round 5"]


def test_the_gap_to_one_big_machine(good: Finding) -> None:
    assert as_json(good)["gap_recovered"] is None
    measured = replace(good, references=References(alone=2.25, joined=1.25))
    assert as_json(measured)["gap_recovered"] == 0.25
    assert "recovered 25% of the distance" in "\n".join(in_words(measured))
    assert as_json(replace(good, references=References(alone=1.0, joined=1.25)))["gap_recovered"] is None


def test_the_table_shows_what_is_known(tmp_path: Path) -> None:
    peer = LocalPeer("peer-1", tmp_path)
    assert cells(peer)[2:] == ("-", "dead", "-", "-", "-", "-", "-", "-")
    peer.row = {"round": 3, "step": 7, "loss": 2.5, "bytes_sent": 12_345_678, "digest": "ab" * 32}
    console = Console(record=True, width=120)
    console.print(peer_table([peer]))
    assert "2.500" in console.export_text()
    assert [human_bytes(count) for count in (None, 999, 1000, 10**13)] == ["-", "999 B", "1.0 kB", "10000.0 GB"]


def test_without_a_terminal_there_are_plain_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with make_display(Console(force_terminal=False, width=20)) as display:
        assert isinstance(display, LineDisplay)
        display.say("a line of more than twenty characters [bold]")
        display.show([])
    assert capsys.readouterr().out == "a line of more than twenty characters [bold]\n"
