"""report.html: one file without scripts or anything to load, light or dark like the reader's system."""

from __future__ import annotations

import time
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from xml.etree.ElementTree import Element

from shoal.node.client.report.charts import (
    LOSS_STYLE,
    bytes_chart,
    loss_chart,
    loss_picture,
    members_chart,
    seconds_chart,
    si,
    timeline,
)
from shoal.node.client.report.markup import tag, to_html
from shoal.node.client.report.plot import chart_style
from shoal.node.client.report.story import Story, by_round, read_story
from shoal.node.client.report.words import Sentence, clock, happenings, outcome, summary, usual_round
from shoal.protocol.base.errors import LocalError

POLICY = "default-src 'none'; style-src 'unsafe-inline'"  # the browser loads nothing, whatever the page contains
MOST_ROWS = 500


def make_report(folder: Path) -> Path:
    """Write report.html and loss.svg into the folder that a `shoal up` left; returns the page's path."""
    story = read_story(folder)
    write(folder / "loss.svg", loss_picture(story))
    return write(folder / "report.html", page(story))


def write(path: Path, text: str) -> Path:
    """Write a file, and return its path; LocalError if that is impossible."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise LocalError(f"cannot write the report into {path.parent}: {error.strerror}", code="unwritable") from error
    return path


def page(story: Story) -> str:
    """The whole document about a play."""
    told = happened(happenings(story))
    return document(
        story, _head(story), _losses(story), told, phases_of_rounds(story), rounds(story), _sample(story), _end(story)
    )


def document(story: Story, *parts: Element | None) -> str:
    """A document of these parts."""
    body = tag("body", tag("main", *[part for part in parts if part is not None]))
    return to_html(tag("html", _meta(story), body, lang="en"))


def _meta(story: Story) -> Element:
    style = files("shoal.node.client.report").joinpath("style.css").read_text(encoding="utf-8")
    return tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=POLICY),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", f"Shoal: {_name(story)}"),
        tag("style", chart_style() + LOSS_STYLE + style),
    )


def _head(story: Story) -> Element:
    verdict, sentence = outcome(story)
    began = time.strftime("%Y-%m-%d %H:%M", time.localtime(story.began))
    facts = {
        "began": began,
        "took": clock(story.ended - story.began),
        "peers": str(len(story.peers)),
        "rounds": f"{len(story.rounds)} of {story.wanted or '?'}",
        "went on from": f"round {story.resumed_from}" if story.resumed_from else None,
        "tokens": si(float(story.result["tokens"])) if story.result else None,
        "parameters": si(float(story.result["parameters"])) if story.result else None,
    }
    shown = [tag("div", tag("dt", name), tag("dd", value)) for name, value in facts.items() if value]
    return tag(
        "header",
        tag("h1", f"Shoal: {_name(story)}"),
        tag("p", sentence, class_=f"verdict {verdict}"),
        tag("dl", *shown),
        tag("ul", *[tag("li", line) for line in summary(story)]),
    )


def _losses(story: Story) -> Element | None:
    chart = loss_chart(story)
    if not chart:
        return None
    words = (
        "A point is the mean training loss of a peer in one round; lower is better. Each peer reads data of its own. "
        "Validation losses are measured on text that nobody has trained on: on up to 262,144 "
        "tokens of it before and after, and on the same small sample in between."
    )
    if story.first("reference") is not None:
        words += (
            " The references are drawn over the tokens that they have trained on themselves: one peer alone has one "
            "member's share, one big machine as many as all members together."
        )
    return tag("section", tag("h2", "Loss"), tag("p", words), *chart)


def happened(told: Sequence[Sentence]) -> Element | None:
    """The table of what happened, and when; None if nothing did."""
    if not told:
        return None
    rows = [
        tag("tr", tag("td", clock(each.at), class_="time"), tag("td", each.text), class_=each.kind or None)
        for each in told
    ]
    return tag("section", tag("h2", "What happened"), tag("table", *rows, class_="story"))


def phases_of_rounds(story: Story) -> Element | None:
    """The chart of the phases of each round, with a sentence about a usual round."""
    chart = timeline(story)
    if not chart:
        return None
    words = (
        "Each row is a peer; the numbers above are the rounds. Peers that are done with training wait in matching "
        "for the others; what is empty was not reported. Point at a bar for its figures."
    )
    return tag("section", tag("h2", "Where the time went"), tag("p", words), *chart, tag("p", usual_round(story)))


def rounds(story: Story) -> Element | None:
    """The charts and the table of the committed rounds; None if there are none."""
    if not story.rounds:
        return None
    charts = [members_chart(story), bytes_chart(story), seconds_chart(story)]
    grid = tag("div", *[tag("figure", tag("figcaption", _title(each)), each) for each in charts if each is not None])
    grid.set("class", "charts")
    return tag("section", tag("h2", "Rounds"), grid, _table(story))


def _table(story: Story) -> Element:
    times = by_round(story)
    columns = ("round", "members", "counted", "seconds", "bytes", "history")
    rows = [
        (
            str(each.round),
            str(each.members),
            str(each.contributors),
            f"{sum(times[each.round].values()):.2f}" if each.round in times else "-",
            f"{si(each.bytes)}B",
            each.digest[:16],
        )
        for each in story.rounds[-MOST_ROWS:]
    ]
    known = [place for place in range(len(columns)) if any(row[place] not in ("", "-") for row in rows)]
    head = tag("tr", *[tag("th", columns[place]) for place in known])
    body = [tag("tr", *[tag("td", row[place]) for place in known]) for row in rows]
    return tag("details", tag("summary", "All rounds as a table"), tag("table", head, *body, class_="figures"))


def _sample(story: Story) -> Element | None:
    text = story.result.get("sample")
    if not text:
        return None
    words = (
        "A text as the final state writes it, byte by byte, drawn with a fixed seed. The model is tiny and has seen "
        "little: expect the looks of the text that it learned from, not its sense."
    )
    return tag("section", tag("h2", "What the model writes"), tag("p", words), tag("pre", text))


def _end(story: Story) -> Element:
    ends = [(each["peer"], each["outcome"], str(each["round"]), each["digest"][:16]) for each in _peer_ends(story)]
    head = tag("tr", *[tag("th", column) for column in ("peer", "outcome", "round", "state")])
    rows = [tag("tr", *[tag("td", cell) for cell in row]) for row in ends]
    words = (
        "All figures come from metrics.jsonl beside this file, which has more of them. loss.svg is the first chart as "
        "a picture, manifest.toml is the run as it was, logs/ has what each process said, and peers/ the state that "
        "each peer held at the end. "
    )
    again = (tag("code", "shoal report"), " with the name of this folder makes the page again.")
    table = tag("table", head, *rows, class_="figures") if ends else None
    return tag("section", tag("h2", "In the end"), table, tag("p", words, *again))


def _peer_ends(story: Story) -> list[dict[str, str]]:
    return list(story.result.get("peers", []))


def _name(story: Story) -> str:
    return str(story.plan.get("run", "a run"))


def _title(chart: Element) -> str:
    return chart.get("aria-label", "")
