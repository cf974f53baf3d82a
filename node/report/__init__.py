"""`report.html` and `loss.png`: what one `shoal up` did, for people, made from its folder alone.

read (metrics.jsonl as values) -> words, curves -> charts (SVG) and picture (PNG) -> page (HTML).
docs/metrics.md says what is in metrics.jsonl.
"""

from __future__ import annotations

from pathlib import Path

from shoal.protocol.errors import LocalError


def make_report(folder: Path) -> Path:
    """Write report.html and loss.png into the folder that a `shoal up` left; returns the page's path."""
    from shoal.node.report.page import page
    from shoal.node.report.picture import save_loss
    from shoal.node.report.read import read_story

    story = read_story(folder)
    report = folder / "report.html"
    try:
        save_loss(story, folder / "loss.png")
        report.write_text(page(story), encoding="utf-8")
    except OSError as error:
        raise LocalError(f"cannot write the report into {folder}: {error.strerror}") from error
    return report
