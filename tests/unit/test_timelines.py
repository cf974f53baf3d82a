"""The timelines of a run: of the last rounds, also after a restart; a full disk ends nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shoal.node.api.errors import UnknownRound
from shoal.node.run.phases import PhaseLog
from shoal.node.run.timelines import KEPT, NAME, Timelines
from shoal.protocol.averaging.events import Begun
from shoal.protocol.base.ids import PeerId
from shoal.protocol.messages.averaging import Call
from shoal.protocol.net.measure.link import Link

ANNA, ME = PeerId("anna"), PeerId("me")


def play(timelines: Timelines, rounds: range) -> None:
    """Go through these rounds; the last one goes on."""
    for number in rounds:
        if timelines.observe(float(number), "training", number, PhaseLog()):
            timelines.keep(float(number))
        timelines.observe(number + 0.5, "matching", number, PhaseLog())


def test_the_last_rounds_are_known_also_after_a_restart(tmp_path: Path) -> None:
    timelines = Timelines(ME, tmp_path)
    play(timelines, range(1, 4 * KEPT))
    assert timelines.find(0.0, 4 * KEPT - 1)["ended"] is None  # goes on
    last = timelines.find(0.0, 4 * KEPT - 2)
    assert (last["began"], last["ended"], last["peer"]) == (-0.5, 0.5, ME)
    assert len((tmp_path / NAME).read_text().splitlines()) <= 2 * KEPT
    for later in (timelines, Timelines(ME, tmp_path)):
        assert later.find(0.0, 4 * KEPT - 2) == last
        with pytest.raises(UnknownRound, match=f"nothing is known of round {3 * KEPT - 2}"):
            later.find(0.0, 3 * KEPT - 2)
        assert later.find(0.0, 3 * KEPT - 1)["round"] == 3 * KEPT - 1


def test_which_rounds_are_known_is_said(tmp_path: Path) -> None:
    timelines = Timelines(ME, tmp_path)
    with pytest.raises(UnknownRound, match="has seen none of this run yet"):
        timelines.find(0.0, 1)
    play(timelines, range(1, 4))
    play(timelines, range(7, 9))
    with pytest.raises(UnknownRound, match=r"nothing is known of round 5: .* has rounds 1 to 3, 7 to 8$"):
        timelines.find(0.0, 5)


def test_what_comes_late_is_still_written(tmp_path: Path) -> None:
    timelines = Timelines(ME, tmp_path)
    play(timelines, range(1, 2))
    assert timelines.observe(2.0, "training", 2, PhaseLog())
    timelines.received(2.5, ANNA, Call(0, 1))
    assert not (tmp_path / NAME).exists()
    assert [each["peer"] for each in timelines.find(2.6, 1)["traffic"]] == [ANNA]
    timelines.keep(3.0)
    assert [each["peer"] for each in json.loads((tmp_path / NAME).read_text())["traffic"]] == [ANNA]


def test_rounds_of_a_branch_that_was_left_are_dropped(tmp_path: Path) -> None:
    timelines = Timelines(ME, tmp_path)
    play(timelines, range(1, 9))
    timelines.forget(5)
    play(timelines, range(3, 5))  # of the run, which is not as far
    for later in (timelines, Timelines(ME, tmp_path)):
        assert later.find(0.0, 2)["round"] == 2
        with pytest.raises(UnknownRound):
            later.find(0.0, 6)


def test_a_damaged_file_costs_the_damaged_lines(tmp_path: Path) -> None:
    play(Timelines(ME, tmp_path), range(1, 4))
    path = tmp_path / NAME
    path.write_bytes(b"[]\n{}\n\xff\n" + path.read_bytes() + b'{"round": 9, "ha')
    timelines = Timelines(ME, tmp_path)
    assert timelines.find(0.0, 2)["round"] == 2
    play(timelines, range(9, 11))
    assert [json.loads(line)["round"] for line in path.read_text().splitlines()] == [1, 2, 9]


def test_a_round_that_an_earlier_version_wrote_is_not_known(tmp_path: Path) -> None:
    play(Timelines(ME, tmp_path), range(1, 4))
    path = tmp_path / NAME
    first, second = path.read_text().splitlines()
    path.write_text(first.replace('"proposer"', '"leader"') + "\n" + second + "\n")
    timelines = Timelines(ME, tmp_path)
    assert timelines.find(0.0, 2)["round"] == 2
    with pytest.raises(UnknownRound, match="has rounds 2"):
        timelines.find(0.0, 1)


def test_a_full_disk_is_said_once_and_ends_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    timelines = Timelines(ME, tmp_path / "gone")
    play(timelines, range(1, 5))
    assert [getattr(record, "code", "") for record in caplog.records] == ["timeline-not-written"]
    assert timelines.find(0.0, 2)["round"] == 2


def test_by_which_paths_the_group_was_connected_is_kept(tmp_path: Path) -> None:
    timelines = Timelines(ME, tmp_path)
    play(timelines, range(1, 2))
    timelines.links = lambda: [Link(PeerId(name), "relayed", None, 0, 0, ()) for name in ("anna", "stranger")]
    timelines.told(1.6, Begun(1, (ANNA, ME), (ANNA,), ME))
    timelines.links = tuple  # it is gone
    assert timelines.find(1.7, 1)["paths"] == {ANNA: "relayed"}
