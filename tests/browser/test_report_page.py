"""The report of a recorded play, as a browser shows the file: whole, quiet, and no wider than the window.

`play/metrics.jsonl` is what `shoal up --baseline` wrote, but for the lines of kind `progress`.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from shoal.node.client.report.page import make_report
from tests.browser.kit import DESK, PHONE, Witness

if TYPE_CHECKING:
    from playwright.sync_api import Browser

PLAY = Path(__file__).parent / "play"


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("play")
    shutil.copy(PLAY / "metrics.jsonl", folder)
    return make_report(folder)


@pytest.mark.parametrize(
    ("name", "scheme", "size"),
    [("desk-light", "light", DESK), ("desk-dark", "dark", DESK), ("phone", "light", PHONE)],
)
def test_the_file_is_a_page(
    browser: Browser, report: Path, tmp_path: Path, name: str, scheme: str, size: dict[str, int]
) -> None:
    witness = Witness(browser, report.as_uri(), scheme=scheme, size=size)
    page = witness.page
    page.goto(report.as_uri())
    assert page.inner_text("p.verdict") == "All went as it should."
    assert "20 of 20" in page.inner_text("header dl")
    assert "peer-4 was killed with SIGKILL: 4 of 7 chunks sent in round 4." in page.inner_text("table.story")
    assert [page.locator(shape).count() > 0 for shape in ("polyline.curve", "rect.bar", "circle.dot")] == [True] * 3
    for chart in page.locator("svg").all():
        box = chart.bounding_box()
        assert box is not None
        assert min(box["width"], box["height"]) > 50
    page.click("summary")
    assert page.locator("table.figures tr:visible").count() > 20
    assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]
    dark = page.evaluate(
        "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).slice(0, 3).every((c) => c < 90)"
    )
    assert dark is (scheme == "dark")
    witness.shoot(tmp_path, f"report-{name}")
    witness.is_content()
    page.context.close()
