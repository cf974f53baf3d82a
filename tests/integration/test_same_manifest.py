"""Real nodes that found runs of one file: these are several runs, and whoever comes later is told of all of them."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from shoal.dht.link import format_link, parse_link
from shoal.node.client.up.processes import Children
from shoal.protocol.base.errors import ShoalError
from shoal.protocol.messages.anchor import Anchor
from tests.integration.nodes import RealNode, until, words_of
from tests.integration.test_directory import MANIFEST as PUBLIC

MANIFEST = PUBLIC.replace("public = true", "public = false")


def offered(node: RealNode) -> set[str]:
    return {row["run"] for row in node.client.lookup_runs(MANIFEST) if not row["joined"]}


@pytest.mark.slow
@pytest.mark.swarm
def test_two_founders_of_one_file_have_two_runs_and_a_third_is_offered_both(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(MANIFEST)
    with Children() as children:
        anna = RealNode(tmp_path / "anna").start(children)
        bert = RealNode(tmp_path / "bert").start(children)
        runs = [each.client.create_run(MANIFEST, False)["run"] for each in (anna, bert)]
        assert len(set(runs)) == 2
        third = RealNode(tmp_path / "third").start(children, (anna.address, bert.address))
        words = partial(words_of, anna, bert, third)
        until(lambda: offered(third) == set(runs), "both to be offered", words)
        rows = {row["run"]: row for row in third.client.lookup_runs(MANIFEST)}
        assert [rows[run]["author"] for run in runs] == [each.client.status()["peer"] for each in (anna, bert)]
        third.client.join_run(rows[runs[1]]["link"], False)
        until(lambda: bert.row()["members"] == 2, "it to join", words)
        assert offered(third) == {runs[0]}, "and what it is in is marked as such"

        one = RealNode(tmp_path / "one").start(children, anna.address, join=(str(file),))
        until(lambda: [row["run"] for row in one.client.runs()] == [runs[0]], "the run of the named peer", one.words)
        both = RealNode(tmp_path / "both")
        both.start(children, (anna.address, bert.address), join=(str(file),))
        until(lambda: "in 2 runs of the manifest" in str(both.client.status()["obstacle"]), "a word", both.words)
        assert both.client.runs() == []


@pytest.mark.slow
@pytest.mark.swarm
def test_a_link_that_knows_more_than_a_member_does_not_lead_to_it(tmp_path: Path) -> None:
    """As if that one were an old copy of a home; a link that knows less leads there."""
    with Children() as children:
        founder, later = RealNode(tmp_path / "founder").start(children), RealNode(tmp_path / "later").start(children)
        run = founder.client.create_run(MANIFEST, False)["run"]
        second = RealNode(tmp_path / "second").start(children)
        second.client.join_run(str(founder.client.run_link(run)["link"]), False)
        words = partial(words_of, founder, second, later)
        until(lambda: parse_link(str(founder.client.run_link(run)["link"])).anchor is not None, "an entry", words)
        known = parse_link(str(founder.client.run_link(run)["link"]))
        ahead = format_link(known.run, known.addresses, anchor=Anchor(1_000, bytes(8), known.run[:8]))
        with pytest.raises(ShoalError, match="the link names entry 1000: it is behind, or an old copy"):
            later.client.join_run(ahead, False)
        later.client.join_run(format_link(known.run, known.addresses, anchor=known.anchor), False)
        until(lambda: founder.row()["members"] == 3, "it to join", words)


@pytest.mark.slow
@pytest.mark.swarm
def test_a_run_of_the_same_file_that_is_known_to_the_dht_alone_is_offered_and_never_joined_by_the_file(
    tmp_path: Path,
) -> None:
    file = tmp_path / "run.toml"
    file.write_text(MANIFEST)
    with Children() as children:
        outsider = RealNode(tmp_path / "outsider").start(children)
        founder = RealNode(tmp_path / "founder").start(children, outsider.address)
        run = founder.client.create_run(MANIFEST, False)["run"]
        far = RealNode(tmp_path / "far").start(children, outsider.address, join=(str(file),))
        words = partial(words_of, outsider, founder, far)
        until(lambda: offered(far) == {run}, "the run to be found in the DHT", words)
        until(lambda: "is in a run of the manifest" in str(far.client.status()["obstacle"]), "a word", words)
        assert far.client.runs() == [], "whoever was named is not in a run of the file"
