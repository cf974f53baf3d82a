"""The report: what it reads, writes and draws, from the lines that `shoal up` writes."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import fromstring

import numpy as np
import pytest

from shoal.node.client.report.charts import MOST, loss_curves, marks, shown_rounds, thin, validation_points
from shoal.node.client.report.page import make_report, page
from shoal.node.client.report.plot import Axis, chart_style
from shoal.node.client.report.story import PHASES as SHOWN_PHASES
from shoal.node.client.report.story import Story, bars, read_story
from shoal.node.client.report.words import happenings, outcome, summary, usual_round
from shoal.protocol.base.errors import LocalError

BEGAN = 1_700_000_000.0
EVIL = "<script>alert('x')</script> & \x00\x1b[31m \ud800"
PHASES = {"training": 2.0, "matching": 0.25, "reducing": 0.5, "deciding": 0.1, "applying": 0.15}
LENGTH = sum(PHASES.values())


def line(at: float, kind: str, **fields: Any) -> dict[str, Any]:
    return {"time": BEGAN + at, "kind": kind, **fields}


def event(at: float, name: str, text: str, **fields: Any) -> dict[str, Any]:
    return line(at, "event", event=name, text=text, **fields)


def reported(peer: int, number: int, *, members: int = 3, **changes: Any) -> dict[str, Any]:
    """A usual round of three seconds; round 1 begins at 10."""
    phases = [{"phase": name, "seconds": time} for name, time in (PHASES | changes.pop("phases", {})).items()]
    end = 10 + LENGTH * number
    usual = {"peer": f"peer-{peer}", "round": number, "entry": 7, "members": members, "contributors": members}
    usual |= {"digest": f"{number:064x}", "took_part": True, "seconds": 1.0, "bytes": 6000, "resent": 0}
    usual |= {"tokens": 100, "loss": 5.0 - number / 10 - peer / 100, "samples": 300 * number}
    return line(end, "round", **usual, applied_at=BEGAN + end, phases=phases, waited_for={}) | changes


def lines(rounds: int = 8) -> list[dict[str, Any]]:
    """Three peers; peer-3 is killed in round 3, which takes long, and peer-4 comes in round 6."""
    plan = {"run": EVIL, "peers": ["peer-1", "peer-2", "peer-3"], "rounds": rounds, "kill_at": 3, "join_at": 5}
    told = [event(0, "plan", "3 peers; peer-3 dies in round 3", **plan)]
    told += [event(1, "up", f"peer-{peer} is up", peer=f"peer-{peer}", id=f"id-{peer}") for peer in (1, 2, 3, 4)]
    for number in range(1, rounds + 1):
        here = [1, 2, 3] if number < 3 else [1, 2] if number < 6 else [1, 2, 4]
        odd: dict[str, Any] = {"contributors": 2, "phases": {"reducing": 4.5}} if number == 3 else {}
        members = 3 if number == 3 else len(here)
        told += [reported(peer, number, members=members, **odd) for peer in here]
    told.append(event(19, "killed", "peer-3 was killed with SIGKILL: 5 of 9 chunks sent", peer="peer-3"))
    told.append(event(24, "newcomer", "peer-4 joined the run at round 5", peer="peer-4"))
    return told


def result(**changes: Any) -> dict[str, Any]:
    usual = {"exit_status": 0, "words": ["All 3 live peers hold the same state."], "sample": EVIL, "tokens": 2400}
    usual |= {"parameters": 1000, "initial_val_loss": 5.5, "val_loss": 4.0}
    peers = [{"peer": "peer-1", "outcome": "finished", "round": 8, "digest": "ab" * 32}]
    return line(60, "result", **usual, peers=peers) | changes


@pytest.fixture
def story(tmp_path: Path) -> Story:
    return told(tmp_path, [*lines(), result()])


def told(folder: Path, content: list[dict[str, Any]], end: str = "") -> Story:
    (folder / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in content) + end)
    return read_story(folder)


def said(story: Story) -> str:
    return "\n".join(each.text for each in happenings(story))


# -- reading ------------------------------------------------------------------------------------------------


def test_a_story_has_its_peers_rounds_and_faults(story: Story) -> None:
    assert story.peers == ["peer-1", "peer-2", "peer-3", "peer-4"]
    assert [each.round for each in story.rounds] == list(range(1, 9))
    assert [(each.kind, each.round) for each in marks(story)] == [("kill", 3), ("join", 6)]
    assert story.samples_after(4) == 1200


def test_a_line_that_was_cut_off_at_the_end_is_left_out(tmp_path: Path) -> None:
    assert len(told(tmp_path, lines(), end='{"time": 17, "ki').rounds) == 8


def test_what_is_no_record_of_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LocalError, match=r"metrics\.jsonl"):
        read_story(tmp_path)
    (tmp_path / "metrics.jsonl").write_text("nonsense\n{}\n")
    with pytest.raises(LocalError, match="line 1"):
        read_story(tmp_path)


def test_the_last_line_of_a_round_and_peer_counts(tmp_path: Path) -> None:
    assert told(tmp_path, [reported(1, 1, bytes=10), reported(1, 1, bytes=25)]).rounds[0].bytes == 25


# -- words --------------------------------------------------------------------------------------------------


def test_the_story_in_words(story: Story) -> None:
    assert outcome(story) == ("good", "All went as it should.")
    assert summary(story) == ["All 3 live peers hold the same state."]
    words = said(story)
    assert "peer-3 was killed with SIGKILL: 5 of 9 chunks sent." in words
    assert "peer-4 joined the run at round 5." in words
    assert "Round 3 was committed after 7.0 s: 2 of its 3 members counted in every chunk" in words
    assert "scatter and gather took 4.5 s instead of 0.5 s: peer-3 died in it" in words
    assert words.count("was committed") == 1
    assert usual_round(story).startswith("A usual round takes 3.00 s: training 2.00 s, waiting for all 0.25 s")


def test_who_was_waited_for_is_named(tmp_path: Path) -> None:
    slow: dict[str, Any] = {"phases": {"matching": 9.0}}
    odd = [reported(1, 5, **slow), reported(2, 5)]
    odd += [reported(1, 7, phases={"deciding": 7.0}, waited_for={"id-2": 6.5, "id-3": 0.1})]
    words = said(told(tmp_path, [*lines(), *odd]))
    assert "waiting for all took 4.6 s instead of 0.2 s; peer-2 was the last to finish training" in words
    assert "others waited for peer-2 (up to 6.5 s)" in words
    words = said(told(tmp_path, [*lines(), reported(1, 5, phases={"matching": 1.5}), reported(2, 5)]))
    assert "up to 1.5 s of it went in waiting for peer-2 to finish training" in words


@pytest.mark.parametrize(
    ("here", "newcomer", "words"),
    [
        (
            {"matching": 9.0},
            {"syncing": 6.0, "matching": 0.0},
            "waiting for all took 6.0 s instead of 0.2 s; peer-4 was still",
        ),
        (
            {"matching": 1.5},
            {"syncing": 2.2, "matching": 0.0},
            "1.5 s of it went in waiting for peer-4, which was still",
        ),
        (
            {"training": 7.0},
            {"syncing": 9.0, "training": 8.0},
            "training took 7.3 s instead of 2.0 s; peer-4 was still",
        ),
    ],
)
def test_a_newcomer_downloads_and_is_not_said_to_train(
    tmp_path: Path, here: dict[str, float], newcomer: dict[str, float], words: str
) -> None:
    odd = [reported(1, 6, phases=here), reported(2, 6, phases=here), reported(4, 6, phases=newcomer)]
    assert f"{words} downloading the state." in said(told(tmp_path, [*lines(), *odd]))


def test_who_told_no_phases_did_not_keep_the_others_waiting(tmp_path: Path) -> None:
    waiting: dict[str, Any] = {"phases": {"matching": 9.0}}
    untold = {**reported(1, 5), "phases": []}
    words = said(told(tmp_path, [*lines(), untold, reported(2, 5), reported(2, 4, **waiting), {**untold, "round": 4}]))
    assert "peer-1 was the last" not in words
    assert "peer-2 was the last to finish training" in words


def test_a_run_without_a_verdict_says_why(tmp_path: Path) -> None:
    story = told(tmp_path, [*lines(4)[:-2], event(40, "ended", "peer-2 died unexpectedly")])
    assert outcome(story) == ("bad", "The run came to no verdict: peer-2 died unexpectedly.")
    assert summary(story) == ["4 of 4 rounds were committed before it ended, after 40.0 s."]
    assert marks(story) == []


def test_a_play_that_went_on_counts_its_own_rounds_and_says_from_where(tmp_path: Path) -> None:
    plan = event(0, "plan", "2 peers", peers=["peer-1", "peer-2"], rounds=8, resumed_from=4)
    slow: dict[str, Any] = {"phases": {"training": 9.0}}
    rows = [reported(peer, number, **(slow if number == 5 else {})) for number in (5, 6, 7, 8) for peer in (1, 2)]
    up = [event(1, "up", "x", peer=f"peer-{peer}", id=f"id-{peer}") for peer in (1, 2)]
    story = told(tmp_path, [plan, *up, *rows])
    assert summary(story)[0].startswith("4 of 4 rounds after round 4 were committed")
    assert "which includes loading torch" in said(story)
    text = page(story)
    assert "<dd>4 of 4</dd>" in text
    assert "<dt>went on from</dt><dd>round 4</dd>" in text


def test_a_bad_verdict_is_shown_as_one(tmp_path: Path) -> None:
    assert outcome(told(tmp_path, [*lines(), result(exit_status=1)]))[0] == "bad"


# -- what is drawn ------------------------------------------------------------------------------------------


def test_curves_are_over_the_tokens_of_all(story: Story) -> None:
    curves = {each.name: each.points for each in loss_curves(story)}
    assert np.allclose(curves["peer-3"], [(300, 4.87), (600, 4.77)])
    assert [tokens for tokens, _ in curves["peer-4"]] == [1800, 2100, 2400]
    assert np.allclose(curves["the swarm"][0], (300, 4.88))


def test_the_best_reference_is_drawn_and_a_diverged_one_never(tmp_path: Path) -> None:
    made = [
        event(50, "reference", "x", reference="alone", loss=loss, curve=[[100, 5.0], [200, loss]])
        for loss in (float("nan"), 4.5, 4.7)
    ]
    curves = {each.name: each.points for each in loss_curves(told(tmp_path, [*lines(), *made]))}
    assert curves["one peer alone"] == ((100.0, 5.0), (200.0, 4.5))


def test_validation_losses_of_states_are_a_curve_over_the_tokens_behind_them(tmp_path: Path) -> None:
    def figure(loss: float, sequences: int = 8) -> dict[str, Any]:
        return {"validation_loss": loss, "validation_sequences": sequences}

    one, other, broken = map(figure, (4.0, 3.0, float("nan")))
    figures = [
        reported(1, 1, **one),
        reported(1, 4, **other),
        reported(2, 4, validation_loss=6.0, validation_sequences=16),
    ]
    story = told(tmp_path, [*lines(), *figures, reported(1, 6, **broken)])
    curves = {each.name: each for each in loss_curves(story)}
    assert curves["validation, on a sample"].points == ((300.0, 4.0), (1200.0, 5.0))
    assert 'class="curve validation"' in page(story)
    make_report(tmp_path)
    assert ".validation {" in (tmp_path / "loss.svg").read_text()
    assert not [each for each in loss_curves(told(tmp_path, lines())) if each.kind == "validation"]


def test_bars_end_when_the_round_was_applied(story: Story) -> None:
    found = [each for each in bars(story, range(1, 3)) if each.peer == "peer-3"]
    assert found[0].start == pytest.approx(10.0)
    assert [each.phase for each in found[:5]] == list(PHASES)
    assert found[-1].phase == "unreported"
    assert found[-1].stop == pytest.approx(19.0)


def test_a_long_run_stays_small_and_legible(tmp_path: Path) -> None:
    story = told(tmp_path, [*lines(2000), result()])
    assert shown_rounds(story) == range(1, 25)
    assert all(len(each.points) <= MOST for each in loss_curves(story))
    assert len(page(story)) < 1_500_000
    assert thin(range(1001))[:: MOST - 1] == [0, 1000]


@pytest.mark.parametrize(
    ("low", "high", "ticks"), [(0, 10, [0, 2, 4, 6, 8, 10]), (0.5, 3.5, [1, 2, 3]), (3, 3, [3]), (0, 1e6, None)]
)
def test_ticks_are_round(low: float, high: float, ticks: list[float] | None) -> None:
    found = Axis(low, high, "", whole=True).ticks(5)
    assert found == ticks if ticks is not None else len(found) <= 6


# -- the page -----------------------------------------------------------------------------------------------

VOID = {"meta"}


class Checker(HTMLParser):
    """Tags must close in order; what a page could load is collected."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.loads: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.loads += [f"{name}={value}" for name, value in attrs if name in ("src", "href", "srcset", "style")]
        self.loads += [name for name, _ in attrs if name.startswith("on")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def check(text: str) -> Checker:
    checker = Checker()
    checker.feed(text)
    checker.close()
    assert checker.open == []
    return checker


def test_the_page_is_whole_and_needs_nothing_else(story: Story) -> None:
    text = page(story)
    checker = check(text)
    assert checker.seen.count("svg") == 5
    assert not {"script", "link", "img", "iframe", "object"} & set(checker.seen)
    assert checker.loads == []
    assert not re.search(r"https?:|url\(|@import", text)


def test_what_others_wrote_is_escaped(story: Story) -> None:
    text = page(story)
    assert text.count("&lt;script&gt;alert('x')&lt;/script&gt; &amp; \ufffd\ufffd[31m") >= 3  # title, heading, sample
    assert "\x00" not in text
    text.encode()


@pytest.mark.parametrize("content", [[], lines()[:1], lines()[:5], [*lines()[:5], event(9, "ended", "interrupted")]])
def test_whatever_is_known_makes_a_page(tmp_path: Path, content: list[dict[str, Any]]) -> None:
    told(tmp_path, content)
    report = make_report(tmp_path)
    check(report.read_text())
    fromstring((tmp_path / "loss.svg").read_text())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["loss.svg", "metrics.jsonl", "report.html"]


INFINITE = [float("inf"), float("-inf"), float("nan")]


@pytest.mark.parametrize("loss", INFINITE)
def test_a_loss_that_is_no_number_is_not_drawn(tmp_path: Path, loss: float) -> None:
    made = event(50, "reference", "x", reference="alone", loss=4.5, curve=[[100, loss], [200, 4.5]])
    diverged = event(51, "reference", "x", reference="joined", loss=loss, curve=[[100, 5.0]])
    odd = [reported(1, 2, loss=loss), made, diverged, result(initial_val_loss=loss)]
    story = told(tmp_path, [*lines(), *odd])
    check(make_report(tmp_path).read_text())
    curves = {each.name: each.points for each in loss_curves(story)}
    assert [tokens for tokens, _ in curves["peer-1"][:2]] == [300, 900]
    assert curves["one peer alone"] == ((200.0, 4.5),)
    assert "one big machine" not in curves
    assert [name for name, *_ in validation_points(story)] == ["the swarm", "one peer alone"]


def test_a_story_without_its_plan_makes_a_page(tmp_path: Path) -> None:
    story = told(tmp_path, lines()[1:])
    check(make_report(tmp_path).read_text())
    assert [each.kind for each in marks(story)] == ["join"]


def test_older_records_without_phases_make_a_page(tmp_path: Path) -> None:
    told_then = ("time", "kind", "peer", "round", "attempt", "members", "contributors", "digest", "took_part")
    each = [reported(1, number, attempt=1) for number in (1, 2)]
    old = [{key: record[key] for key in (*told_then, "seconds", "bytes")} for record in each]
    check(page(told(tmp_path, [*lines()[:5], *old])))


def test_the_page_and_the_picture_are_made_from_the_folder_alone(story: Story) -> None:
    report = make_report(story.folder)
    text = report.read_text()
    assert "peer-3 killed" in text
    assert "peer-4 joins" in text
    drawing = (story.folder / "loss.svg").read_text()
    assert "peer-3 killed" in drawing
    curves = [each for each in fromstring(drawing).iterfind(".//{*}polyline") if "curve" in each.get("class", "")]
    assert len(curves) == len(loss_curves(story)) == 5
    assert re.findall(r"https?:[^\"]*|url\(|@import|<script", drawing) == ["http://www.w3.org/2000/svg"]


def test_each_phase_has_a_colour() -> None:
    assert [phase for phase in SHOWN_PHASES if f".{phase} {{" not in chart_style()] == []
