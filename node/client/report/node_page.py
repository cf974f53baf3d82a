"""The report of a node: for each run in its home a page, from what is on the node's disk alone."""

from __future__ import annotations

import time
from pathlib import Path
from xml.etree.ElementTree import Element

from shoal.node.base.disk import list_folder
from shoal.node.base.home import Home
from shoal.node.base.options import is_run_id
from shoal.node.client.report.markup import tag
from shoal.node.client.report.node_story import NodeStory, read_run
from shoal.node.client.report.page import document, happened, phases_of_rounds, rounds, write
from shoal.node.client.report.words import clock
from shoal.protocol.base.errors import LocalError


def make_node_reports(home: Home) -> tuple[list[Path], list[str]]:
    """Write a page for each run into the home; returns their paths, and why there is none of the other runs.

    LocalError if there is not one page to write.
    """
    pages, lacking = list[Path](), list[str]()
    for run in (path.name for path in list_folder(home.runs) if is_run_id(path.name, whole=True)):
        try:
            found = read_run(home, run)
        except LocalError as error:
            lacking.append(str(error))
            continue
        stem = "-".join(filter(None, ("report", found.name, run[:8])))
        pages.append(write(home.root / f"{stem}.html", node_page(found)))
    if not pages:
        why = "; ".join(lacking) or "the node has been in no run"
        raise LocalError(f"there is nothing to report of {home.root}: {why}", code="no-report")
    return pages, lacking


def node_page(found: NodeStory) -> str:
    """The whole document about a run."""
    story = found.story
    return document(story, _head(found), happened(found.told), phases_of_rounds(story), rounds(story), _end())


def _head(found: NodeStory) -> Element:
    story, numbers = found.story, [each.round for each in found.story.rounds]
    newest = found.checkpoint
    facts = {
        "began": time.strftime("%Y-%m-%d %H:%M", time.localtime(story.began)),
        "took": clock(story.ended - story.began),
        "node": found.peer,
        "rounds": f"{len(numbers)}, from {numbers[0]} to {numbers[-1]}" if numbers else "none was committed",
        "newest checkpoint": f"round {newest.round}, {newest.samples:,} tokens" if newest is not None else None,
    }
    shown = [tag("div", tag("dt", name), tag("dd", value)) for name, value in facts.items() if value]
    return tag(
        "header",
        tag("h1", f"Shoal: {found.title}"),
        tag("p", "The last rounds of a run, as one of its nodes has them on its disk."),
        tag("dl", *shown),
        tag("p", "What is missing:"),
        tag("ul", *[tag("li", line) for line in found.lacks]),
    )


def _end() -> Element:
    words = (
        "All figures come from the files of the node: rounds.jsonl and checkpoints/ in the run's folder below runs/, "
        "and logs/daemon.log. "
    )
    more = (tag("code", "shoal logs --round"), " shows one of these rounds in full while the node runs.")
    return tag("section", tag("p", words, *more))
