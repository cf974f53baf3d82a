"""The report of a node from what is on its disk: its last rounds, its log, a checkpoint, and what is missing."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from shoal.node.base.exits import Exit
from shoal.node.base.home import Home, find_home
from shoal.node.client.cli import main
from shoal.node.client.report.node_page import make_node_reports, node_page
from shoal.node.client.report.node_story import read_run
from shoal.node.training.checkpoint.scan import CHECKPOINTS
from shoal.protocol.base.errors import LocalError
from tests.fake_timeline import SELF, TIMELINE
from tests.run_kit import id_of
from tests.unit.checkpoint_kit import MANIFEST, write
from tests.unit.test_report import check

RUN = id_of(MANIFEST).hex()
READY = TIMELINE["ready_at"]


@pytest.fixture
def home() -> Home:
    return find_home().create()


def timeline(number: int, **changes: Any) -> dict[str, Any]:
    """A usual round of three seconds; each is ready ten seconds after the one before."""
    return TIMELINE | {"round": number, "ready_at": READY + 10 * number, "events": [], "uncounted": []} | changes


def keep(home: Home, *timelines: dict[str, Any], run: str = RUN, end: str = "") -> None:
    lines = "".join(json.dumps(each) + "\n" for each in timelines)
    (home.make_run_folder(run) / "rounds.jsonl").write_text(lines + end)


def log(home: Home, *lines: str | dict[str, str]) -> None:
    home.daemon_log.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))


def warning(at: str, words: str) -> dict[str, str]:
    return {"time": at, "level": "warning", "logger": "shoal.run", "message": words, "code": "worker-lost"}


def test_a_page_has_the_rounds_the_trouble_and_what_is_missing(home: Home) -> None:
    slow = [
        {"phase": "training", "from": -2.0, "to": 0.0},
        {"phase": "reducing", "from": 0.0, "to": 9.0},
        {"phase": "applying", "from": 9.0, "to": 9.1},
    ]
    waits = [{"phase": "reducing", "peer": "12D3KooWslow03", "seconds": 8.5}]
    lost = {"at": 1.0, "what": "lost", "peer": SELF, "words": ""}
    late = timeline(9, phases=slow, waited_for=waits, ended=9.1, events=[lost])
    keep(home, *(timeline(number) for number in (5, 6, 7)), late)
    log(
        home,
        "no JSON",
        warning("2001-01-01T00:00:00.000Z", "long ago"),
        warning("2023-11-14T22:14:40.000Z", "the worker was killed"),
        {"time": "2023-11-14T22:14:41.000Z", "level": "info", "logger": "shoal.run", "message": "no warning"},
        warning("2023-11-14T22:14:42.000Z", "no warning either, though it has a code") | {"level": "info"},
        warning("2023-11-14T22:14:43.000Z", "a disk is gone") | {"level": "error"},
    )
    write(home.run_folder(RUN) / CHECKPOINTS, 4)
    text = node_page(read_run(home, RUN))
    checked = check(text)
    assert checked.seen.count("svg") == 4
    assert checked.loads == []
    for words in (
        f"<h1>Shoal: {MANIFEST.name} ({RUN[:8]})</h1>",
        "<dd>4, from 5 to 9</dd>",
        "Round 9 took 11.1 s; self01 was lost. Most of it was reducing",
        "it waited 8.500 s for slow03 (relayed).",
        "the worker was killed [worker-lost]",
        "a disk is gone [worker-lost]",
        "Rounds before round 5 are not here",
        "Of rounds 5 to 9, 1 is not here.",
        "There are no losses",
        "<dt>newest checkpoint</dt><dd>round 4, 1,000 tokens</dd>",
        "Bytes sent per round, by self01",
    ):
        assert words in text, words
    assert "long ago" not in text
    assert "no warning" not in text
    assert "<th>history</th>" not in text


def test_long_training_is_no_wait(home: Home) -> None:
    usual = [timeline(number) for number in (1, 2, 3)]
    training = [{"phase": "training", "from": -30.0, "to": 0.0}, *TIMELINE["phases"][1:]]
    keep(home, *usual, timeline(4, began=-30.0, phases=training))
    assert [each.text for each in read_run(home, RUN).told] == ["Round 4 took 31.0 s. Most of it was training, 30.0 s."]


def test_a_round_that_was_not_committed_is_told_and_not_counted(home: Home) -> None:
    failed = [{"at": 0.5, "what": "lapsed", "peer": None, "words": "nobody else who trains is here"}]
    lapse = timeline(2, committed=None, proposer=None, size=0, members=[], events=failed)
    met = [{"at": 0.9, "what": "exchanged", "peer": SELF, "words": "and it has ours"}]
    keep(home, timeline(1), lapse, timeline(3, proposer=None, size=0, members=[], events=met))
    found = read_run(home, RUN)
    assert [(each.round, each.members) for each in found.story.rounds] == [(1, 4), (3, 2)]
    assert [each.text for each in found.told] == [
        "Round 2 took 3.0 s; was not committed here; nobody else who trains is here."
    ]


def test_without_log_name_and_checkpoint_it_says_so(home: Home) -> None:
    keep(home, timeline(1), end='{"round": 2}\n{"rou')
    found = read_run(home, RUN)
    assert found.title == f"run {RUN[:8]}"
    lacks = " ".join(found.lacks)
    for words in ("1 line of rounds.jsonl", "There is no daemon.log", "There is no checkpoint"):
        assert words in lacks, words
    check(node_page(found))


@pytest.mark.parametrize("change", [{"events": [7]}, {"phases": None}, {"peer": 3}, {"ready_at": "now"}, {"size": "x"}])
def test_a_round_that_makes_no_sense_is_left_out(home: Home, change: dict[str, Any]) -> None:
    keep(home, timeline(1), timeline(2, **change))
    found = read_run(home, RUN)
    assert [each.round for each in found.story.rounds] == [1]
    assert "1 line of rounds.jsonl" in found.lacks[0]


def test_each_run_gets_a_page_and_one_without_rounds_a_sentence(home: Home) -> None:
    keep(home, timeline(1))
    home.make_run_folder("cd" * 32)
    pages, lacking = make_node_reports(home)
    assert pages == [home.root / f"report-{RUN[:8]}.html"]
    assert [why.split(" ", 2)[:2] for why in lacking] == [["run", "cdcdcdcd"]]
    check(pages[0].read_text())


def test_a_home_with_nothing_to_report_says_what_is_missing(home: Home) -> None:
    with pytest.raises(LocalError, match="the node has been in no run"):
        make_node_reports(home)
    home.make_run_folder(RUN)
    with pytest.raises(LocalError, match=r"has no rounds in .*rounds\.jsonl: none has ended on this node yet"):
        make_node_reports(home)


def test_the_command_takes_a_home(
    home: Home, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def ended(folder: Path) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["shoal", "report", str(folder)])
        with pytest.raises(SystemExit) as end:
            main()
        return int(end.value.code or 0), *capsys.readouterr()

    keep(home, timeline(1))
    home.make_run_folder("cd" * 32)
    code, out, err = ended(home.root)
    assert (code, out) == (Exit.OK, f"{home.root / f'report-{RUN[:8]}.html'}\n")
    assert err.startswith("no report: run cdcdcdcd has no rounds in ")
    code, out, err = ended(tmp_path)
    assert (code, out) == (Exit.FAILED, "")
    assert "holds no metrics.jsonl: give the folder that `shoal up` named, or a node's home" in err
