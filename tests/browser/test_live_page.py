"""The page of a real node that trains with another: a login, curves that move, new rounds, and all that it can do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from shoal.node.client.up.processes import Children
from tests.browser.kit import PHONE, Witness
from tests.integration.nodes import RealNode, until
from tests.integration.test_node import MANIFEST

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.slow  # two daemons load torch


@dataclass
class Pair:
    """Two nodes that train together."""

    first: RealNode
    second: RealNode

    @property
    def token(self) -> str:
        return self.first.home.token()


@pytest.fixture(scope="module")
def pair(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp("pair")
    with Children() as children:
        first = RealNode(folder / "first").start(children)
        second = RealNode(folder / "second").start(children, first.address)
        run = str(first.client.create_run(MANIFEST, True)["run"])
        until(lambda: second.client.peers(), "a connection", second.words)
        second.client.join_run(run, True)
        until(lambda: first.round() >= 1, "a first round", lambda: first.words() + second.words())
        yield Pair(first, second)


POINTS = "Number(document.querySelector('.run .plot').dataset.points)"
LAST_ROUND = "Number(document.querySelector('table.rounds tbody td').textContent)"


def test_log_in_and_watch(browser: Browser, pair: Pair, tmp_path: Path) -> None:
    url = pair.first.client.url
    witness = Witness(browser, url)
    page = witness.page
    page.goto(url)
    page.fill("#token", "wrong")
    page.click("#login-form button")
    witness.until("document.querySelector('#login-error').textContent.includes('not the token')", "a refusal")
    witness.shoot(tmp_path, "login")
    page.fill("#token", pair.token)
    page.click("#login-form button")
    page.wait_for_selector(".run .plot canvas")
    assert pair.token not in page.url
    assert pair.token not in page.evaluate("document.cookie + JSON.stringify(localStorage)")
    (cookie,) = page.context.cookies()
    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
    assert pair.token not in cookie["value"]

    page.wait_for_selector("table.rounds tbody td")  # a round is in the table once this node has applied it
    seen, round = page.evaluate(POINTS), page.evaluate(LAST_ROUND)
    witness.until(f"{POINTS} > {seen + 1}", "the curve to move")
    witness.until(f"{LAST_ROUND} > {round}", "a new round in the table")
    assert page.inner_text("#state-word") in ("CONNECTED", "IN-ROUND")
    assert page.inner_text("#headline").startswith(("Connected with 1 peer", "Averaging round", "Ready for round"))
    assert page.locator("#peers tbody tr").count() == 1
    assert "direct" in page.inner_text("#peers tbody tr")
    assert "2 of 2" in page.inner_text("table.rounds tbody")
    assert "this node" in str(page.get_attribute(".run .plot", "aria-label"))

    seen = page.evaluate(POINTS)
    page.reload()
    page.wait_for_selector(".run .plot canvas")
    assert page.evaluate(POINTS) >= seen, "the past is lost"
    witness.shoot(tmp_path, "light")
    witness.is_content("401")  # the wrong token
    page.context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_one_click_on_a_phone(browser: Browser, pair: Pair, tmp_path: Path, scheme: str) -> None:
    client = pair.first.client
    witness = Witness(browser, client.url, scheme=scheme, size=PHONE)
    page = witness.page
    page.goto(client.page(with_login=True))
    page.wait_for_selector(".run .plot canvas")
    page.wait_for_selector("#live.on")
    assert page.url == client.url  # the code is out of sight
    page.go_back()
    assert "login" not in page.url
    page.go_forward()
    page.wait_for_selector(".run .plot canvas")
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    bright = page.evaluate("getComputedStyle(document.documentElement).getPropertyValue('--back')")
    assert bright.strip() == {"light": "#f4f6f8", "dark": "#0d1318"}[scheme]
    witness.shoot(tmp_path, f"phone-{scheme}")
    witness.is_content()
    page.context.close()


def test_everything_that_can_be_done_is_done(browser: Browser, pair: Pair, tmp_path: Path) -> None:
    """The last test, as the node has stopped at its end."""
    node, client = pair.first, pair.first.client
    witness = Witness(browser, client.url)
    page = witness.page
    page.goto(client.page(with_login=True))
    page.wait_for_selector(".run .plot canvas")

    def act(label: str, confirm: str = "", told: str = "") -> None:
        page.click(f"main button:visible:text-is('{label}')")
        page.wait_for_selector("dialog[open]")
        if page.is_visible("#dialog-token-field"):
            page.fill("#dialog-token-field", pair.token)
        if confirm:
            page.click(f"dialog button:text-is('{confirm}')")
        if told:
            witness.until(f"document.querySelector('#told').textContent.includes({told!r})", told)

    act("Invite…")
    invitation = page.input_value("dialog input.mono")
    page.keyboard.press("Escape")

    act("Write something…")
    page.fill("dialog textarea", "def ")
    page.click("dialog button:text-is('Write')")
    witness.until("document.querySelector('dialog .written')?.textContent.length > 10", "text")
    witness.shoot(tmp_path, "writes", whole=False)
    said = "document.querySelector('dialog [role=status]').textContent"
    witness.until(f"{said}.startsWith('Written with the weights of round')", "the end of the text")
    page.keyboard.press("Escape")

    act("Limits and hours…")
    page.fill("dialog [name=max-up]", "80Mbit")
    page.click("dialog button:text-is('Change')")
    witness.until("document.querySelector('#told').textContent.includes('max-up')", "the change")
    assert client.settings()["settings"]["max-up"] == "80Mbit"
    assert client.status()["limits"]["max_up"] == 10_000_000

    act("Pause…", "Pause", "Paused")
    witness.until("document.querySelector('#headline').textContent.startsWith('Paused')", "the pause")
    witness.until("document.querySelector('.run .badge').textContent === 'paused'", "the run to be paused")
    act("Resume…", "Resume", "Resumed")
    witness.until("document.querySelector('.run:not(.closed) .plot canvas')", "the run to be open again")
    until(lambda: pair.second.row().get("members") == 2, "both to be in it again", pair.second.words)

    act("Leave…", "Leave", "Left")
    page.wait_for_selector("#empty:visible")
    page.click("#empty button")
    page.fill("dialog input.mono", invitation)
    page.click("dialog button:text-is('Look at it')")
    witness.until("document.querySelector('#dialog-title').textContent.endsWith('?')", "the preview")
    page.click("dialog button:text-is('Join')")
    witness.until("document.querySelector('#told').textContent.startsWith('Joined')", "the run to be joined")
    page.wait_for_selector(".run:visible")
    witness.shoot(tmp_path, "acted")
    witness.is_content()

    act("Stop after the rounds…", "Stop it", "This node stops")
    until(lambda: not node.is_running, "its end", node.words)
    log = node.log.read_text()
    changes = "changed settings: max-up = 80Mbit", "paused this node", "ended the pause", "left the run", "joined a run"
    for words in ("had a text written by", *changes, "looked at a run", "had this node stop"):
        assert any('"page-action"' in line and words in line for line in log.splitlines()), words
    page.context.close()
