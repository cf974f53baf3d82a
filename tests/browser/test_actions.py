"""The page acts, with a fake node: each change is asked about, made once, and told, and needs the token."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from shoal.node.base.options import NodeSettings
from shoal.protocol.base.errors import LocalError
from tests.browser.kit import PHONE, Witness, link, served
from tests.fake_service import LINK, RUN, FakeService

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

TOKEN = "right-token"


class Acting:
    """A page that is logged in by a link, so that it may only look at first."""

    def __init__(self, browser: Browser, service: FakeService, url: str) -> None:
        self.service, self.witness = service, Witness(browser, url)
        self.page: Page = self.witness.page
        self.page.goto(link(url, TOKEN))
        self.page.wait_for_selector("#live.on")

    def begin(self, label: str, title: str) -> None:
        """Click a button, which opens the dialog."""
        self.page.click(f"main button:visible:text-is('{label}')")
        self.page.wait_for_selector(f"dialog[open] h2:has-text('{title}')")

    def confirm(self, label: str) -> None:
        """Show the token if it is asked for, and confirm."""
        if self.page.is_visible("#dialog-token-field"):
            self.page.fill("#dialog-token-field", TOKEN)
        self.page.click(f"dialog button:text-is('{label}')")

    def told(self, words: str) -> None:
        """What came of it is said, in a region that screen readers read, and stands in the list of actions."""
        self.page.wait_for_selector(f"#told:has-text('{words}')")
        assert self.page.get_attribute("#told", "role") == "status"
        self.page.wait_for_selector("dialog", state="hidden")


@pytest.fixture
def acting(browser: Browser) -> Iterator[Acting]:
    service = FakeService()
    with served(service, TOKEN) as url:
        made = Acting(browser, service, url)
        yield made
        made.page.context.close()


def test_who_may_only_look_is_asked_for_the_token_and_then_left_in_peace(acting: Acting) -> None:
    page = acting.page
    acting.begin("Leave…", "Leave stdlib?")
    assert "/home/me/.local/share/shoal/token" in page.inner_text("#dialog-token-hint")
    page.fill("#dialog-token-field", "wrong")
    page.click("dialog button:text-is('Leave')")
    page.wait_for_selector("#dialog-error:has-text('not the token')")
    assert acting.service.calls == []
    acting.confirm("Leave")
    acting.told("Left stdlib.")
    assert acting.service.calls == [("leave", RUN)]
    page.wait_for_selector(f"#actions li:has-text('left the run {RUN[:8]}')")
    acting.begin("Leave…", "Leave stdlib?")
    assert not page.is_visible("#dialog-token-field")
    acting.confirm("Leave")
    acting.witness.until(
        f"{len(acting.service.calls)} >= 2 || document.querySelectorAll('#actions li').length >= 2", "two"
    )
    assert acting.service.calls == [("leave", RUN)] * 2
    kept = page.evaluate("document.cookie + JSON.stringify(localStorage) + JSON.stringify(sessionStorage)")
    assert TOKEN not in kept
    page.reload()
    page.wait_for_selector("#live.on")
    page.wait_for_selector("#actions li")  # the node keeps the list, the page its permit not
    acting.begin("Leave…", "Leave stdlib?")
    assert page.is_visible("#dialog-token-field")
    acting.witness.is_content("401")


def test_a_node_is_paused_and_resumed(acting: Acting) -> None:
    page = acting.page
    acting.begin("Pause…", "Pause this node?")
    page.select_option("dialog select", label="for 8 hours")
    acting.confirm("Pause")
    acting.told("Paused until you resume it.")
    page.wait_for_selector("#headline:has-text('Paused: you have asked for it')")
    assert not page.is_visible("button:text-is('Pause…')")
    acting.begin("Resume…", "Resume this node?")
    acting.confirm("Resume")
    acting.told("Resumed")
    page.wait_for_selector("button:text-is('Pause…'):visible")
    assert acting.service.calls == [("pause", 28800), ("resume",)]
    page.wait_for_selector("#actions li:nth-child(2)")
    rows = page.locator("#actions li").all_inner_texts()
    assert [row[10:] for row in rows] == ["ended the pause of this node", "paused this node"]
    acting.witness.is_content()


def test_a_node_is_stopped_after_its_rounds(acting: Acting) -> None:
    acting.begin("Stop after the rounds…", "Stop this node after its rounds?")
    acting.confirm("Stop it")
    acting.told("This node stops once its rounds are over.")
    assert acting.service.calls == [("drain", None)]
    acting.service.draining = True
    acting.page.wait_for_selector("#advice:has-text('It stops once the rounds under way are over.')")
    assert not acting.page.is_visible("button:text-is('Stop after the rounds…')")
    acting.witness.is_content()


def test_limits_and_hours_are_shown_and_what_was_changed_is_sent(acting: Acting, tmp_path: Path) -> None:
    page = acting.page
    acting.service.settings_of_start = NodeSettings(tmp_path, max_down=1_250_000)
    acting.begin("Limits and hours…", "Limits and hours")
    assert page.input_value("dialog [name=max-down]") == "10Mbit"
    assert page.input_value("dialog [name=max-up]") == ""
    page.fill("dialog [name=max-up]", "20M")
    acting.confirm("Change")
    page.wait_for_selector("#dialog-error:has-text('20M')")
    page.fill("dialog [name=max-up]", "20Mbit")
    page.fill("dialog [name=max-down]", "")
    page.fill("dialog [name=schedule]", "22:00-07:00")
    page.check("dialog [name=only-on-mains]")
    acting.confirm("Change")
    acting.told("Changed: max-up, max-down, schedule, only-on-mains.")
    changed = {"max-up": "20Mbit", "max-down": None, "schedule": "22:00-07:00", "only-on-mains": True}
    assert acting.service.calls == [("settings", changed)]
    page.wait_for_selector("#actions li:has-text('changed settings: max-up = 20Mbit, max-down = none')")
    acting.witness.is_content("400")


def test_who_logs_in_by_the_token_is_not_asked_for_it_again(browser: Browser) -> None:
    service = FakeService()
    with served(service, TOKEN) as url:
        witness = Witness(browser, url)
        page = witness.page
        page.goto(url)
        page.fill("#token", TOKEN)
        page.keyboard.press("Enter")
        page.click("button:text-is('Leave…')")
        dialog = page.get_by_role("dialog", name="Leave stdlib?")  # as screen readers find it
        assert "What it has trained" in page.inner_text(f"#{dialog.get_attribute('aria-describedby')}")
        dialog.get_by_role("button", name="Leave").click()
        page.get_by_role("status").filter(has_text="Left stdlib.").wait_for()
        page.click("#logout")
        page.wait_for_selector("#login:visible")
        assert service.calls == [("leave", RUN)]
        witness.is_content()


def test_nothing_happens_before_it_is_confirmed_and_escape_takes_it_back(acting: Acting) -> None:
    page = acting.page
    for close in (lambda: page.keyboard.press("Escape"), lambda: page.click("#dialog-cancel")):
        acting.begin("Leave…", "Leave stdlib?")
        close()
        page.wait_for_selector("dialog", state="hidden")
    assert acting.service.calls == []
    acting.witness.is_content()


def test_a_run_is_joined_by_its_link_after_a_look_at_it(acting: Acting) -> None:
    page = acting.page
    acting.begin("Join a run…", "Join a run")
    page.keyboard.type(f"shoal run join {LINK}")
    acting.confirm("Look at it")
    page.wait_for_selector("dialog h2:has-text('Join stdlib?')")
    told = page.inner_text("#dialog-body")
    assert "llama with 820,352 parameters" in told
    assert "14 done, and no last one; 4 members" in told
    assert acting.service.calls == [("preview", LINK)]
    page.uncheck("dialog input[type=checkbox]")
    acting.confirm("Join")
    acting.told("Joined stdlib.")
    assert acting.service.calls == [("preview", LINK), ("join", LINK, False)]
    acting.witness.is_content()


def test_why_something_failed_stands_in_the_dialog_and_it_can_be_tried_again(acting: Acting) -> None:
    page = acting.page
    acting.begin("Join a run…", "Join a run")
    page.keyboard.type("dead0000")
    acting.confirm("Look at it")
    page.wait_for_selector("#dialog-error:has-text('no peer answered')")
    assert page.get_attribute("#dialog-error", "role") == "alert"
    page.wait_for_selector("#actions li.bad:has-text('looked at a run; it failed: no peer answered')")
    page.fill("#dialog-body input", RUN)
    acting.confirm("Look at it")
    page.wait_for_selector("dialog h2:has-text('Join stdlib?')")
    acting.witness.is_content("502")


def test_a_machine_that_lacks_the_data_joins_without_training_unless_told_otherwise(acting: Acting) -> None:
    acting.service.missing = "no member gives the run's data"
    acting.begin("Join a run…", "Join a run")
    acting.page.keyboard.type(LINK)
    acting.confirm("Look at it")
    acting.page.wait_for_selector("dialog .notice:has-text('no member gives')")
    acting.confirm("Join")
    acting.told("Joined stdlib.")
    assert acting.service.calls[-1] == ("join", LINK, False)


def test_an_invitation_is_a_link_to_copy_and_a_code_to_scan(acting: Acting) -> None:
    page = acting.page
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    acting.begin("Invite…", "Invite others to stdlib")
    assert not page.is_visible("#dialog-token-field"), "looking needs no token"
    assert page.input_value("dialog input.mono") == f"shoal run join {LINK}"
    page.click("dialog button:text-is('Copy')")
    page.wait_for_selector("dialog [role=status]:text-is('copied')")
    assert page.evaluate("navigator.clipboard.readText()") == f"shoal run join {LINK}"
    box = page.locator("dialog svg.qr").bounding_box()
    assert box is not None
    assert box["width"] == box["height"] > 100
    dark = re.findall(r"M(\d+) (\d+)", str(page.get_attribute("dialog svg.qr path", "d")))
    assert {("2", "2"), ("8", "2"), ("2", "8")} <= set(dark)  # the corners of its first eye, inside the border
    acting.witness.is_content()


def test_a_model_writes_and_can_be_stopped(acting: Acting) -> None:
    page = acting.page
    acting.begin("Write something…", "Write something with stdlib")
    page.keyboard.type("Ten <b>")
    acting.confirm("Write")
    page.wait_for_selector("dialog .written:has-text('Ten <b> sheep on the hill')")
    page.wait_for_selector("dialog [role=status]:has-text('Written with the weights of round 3 or a later one')")
    assert acting.service.calls == [("write", "Ten <b>", None)]
    acting.service.writes_no_more = "it took longer than 300 s"
    acting.confirm("Write another")
    page.wait_for_selector("dialog [role=status]:has-text('It ends here: it took longer')")
    page.keyboard.press("Escape")
    acting.service.news = {"writes_text": False}
    page.wait_for_selector("button:text-is('Write something…')", state="hidden")
    acting.witness.is_content()


def test_checkpoints_are_listed_with_their_age_and_place(acting: Acting) -> None:
    acting.begin("Checkpoints…", "Checkpoints of stdlib")
    rows = acting.page.locator("dialog ol li").all_inner_texts()
    assert rows[0].startswith("round 2, ")
    assert "checkpoints/round-00000002" in rows[0]
    assert rows[1].startswith("damaged: ")
    assert "Since checkpoint 2" in acting.page.inner_text(".run .tiles")
    acting.witness.is_content()


def test_an_empty_node_says_how_to_begin_and_a_finished_or_failed_run_what_is_next(
    acting: Acting, monkeypatch: pytest.MonkeyPatch
) -> None:
    page, service = acting.page, acting.service
    assert not page.is_visible("#empty")
    service.news = {"phase": "finished", "round": 40, "last": 40}
    page.wait_for_selector(".run .next:has-text('kept as the checkpoint of round 2')")
    assert page.locator("button:text-is('Invite…'):visible").count() == 0
    service.news = {"phase": "failed", "failure": "the disk is broken", "may_be_opened_again": False}
    page.wait_for_selector(".run .next:has-text('restart the node')")
    assert "the disk is broken" in page.inner_text(".run .notice")
    assert page.locator("button:text-is('Leave…'):visible").count() == 1
    alone = {**service.status(), "runs": []}
    monkeypatch.setattr(service, "status", lambda: alone)
    page.wait_for_selector("#empty:has-text('shoal run create')")
    page.click("#empty button")
    page.wait_for_selector("dialog h2:has-text('Join a run')")
    acting.witness.is_content()


def test_the_keyboard_reaches_each_action_and_stays_in_the_dialog(acting: Acting) -> None:
    page = acting.page
    page.focus("button:text-is('Leave…')")
    page.keyboard.press("Enter")
    page.wait_for_selector("dialog[open]")
    seen = set()
    for _ in range(8):
        seen.add(page.evaluate("document.activeElement.closest('dialog, body')?.tagName"))
        page.keyboard.press("Tab")
    assert seen <= {"DIALOG", "BODY"}  # the browser's own controls come in between
    assert page.evaluate("document.querySelector('main').matches(':focus-within')") is False
    page.focus("#dialog-token-field")
    page.keyboard.type(TOKEN)
    page.keyboard.press("Enter")
    acting.told("Left stdlib.")
    assert page.evaluate("document.activeElement.textContent") == "Leave…", "the focus is where it was"
    acting.witness.is_content()


def test_on_a_phone_each_dialog_fits(browser: Browser) -> None:
    with served(FakeService(), TOKEN) as url:
        witness = Witness(browser, url, size=PHONE)
        page = witness.page
        page.goto(link(url, TOKEN))
        page.wait_for_selector("#live.on")
        for label in (
            "Join a run…",
            "Pause…",
            "Limits and hours…",
            "Stop after the rounds…",
            "Invite…",
            "Write something…",
            "Checkpoints…",
            "Leave…",
        ):
            page.click(f"button:visible:text-is('{label}')")
            page.wait_for_selector("dialog[open]")
            box = page.locator("dialog").bounding_box()
            assert box is not None
            assert (box["x"] >= 0, box["x"] + box["width"] <= PHONE["width"], box["height"] <= PHONE["height"]) == (
                True,
            ) * 3
            assert page.evaluate(
                "document.querySelector('dialog').scrollWidth <= document.querySelector('dialog').clientWidth"
            )
            page.click("#dialog-cancel")
            page.wait_for_selector("dialog", state="hidden")
        witness.is_content()


def test_a_permit_that_has_expired_is_asked_for_again(acting: Acting, monkeypatch: pytest.MonkeyPatch) -> None:
    page = acting.page
    acting.begin("Leave…", "Leave stdlib?")
    acting.confirm("Leave")
    acting.told("Left stdlib.")
    monkeypatch.setattr(
        "shoal.node.daemon.web.session.AccessControl._is_signed", lambda self, use, shown: use == "page"
    )
    acting.begin("Leave…", "Leave stdlib?")
    page.click("dialog button:text-is('Leave')")
    page.wait_for_selector("#dialog-token-field:visible")
    assert "type the token" in page.inner_text("#dialog-error")
    monkeypatch.undo()
    acting.confirm("Leave")
    acting.witness.until("document.querySelectorAll('#actions li').length === 2", "the second change")


def test_what_a_node_refuses_is_said_where_no_dialog_opens(acting: Acting, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(run: str) -> None:
        raise LocalError("the run has no link yet")

    monkeypatch.setattr(acting.service, "run_link", refuse)
    acting.page.click("button:text-is('Invite…')")
    acting.page.wait_for_selector("#told.bad:has-text('the run has no link yet')")
    acting.witness.is_content("400")


def test_two_hundred_peers_are_shown_within_a_second(browser: Browser) -> None:
    service = FakeService()
    (row,) = service.peers()
    rows = [row | {"peer": f"12D3KooWPeer{number:04}", "reason": "you dialled it"} for number in range(200)]
    service.peers = lambda: rows  # type: ignore[method-assign]
    with served(service, TOKEN) as url:
        witness = Witness(browser, url)
        page = witness.page
        page.goto(link(url, TOKEN))
        page.wait_for_selector("#peers tbody tr:nth-child(200)")
        page.wait_for_selector("#peer-count:text-is('200')")  # as the table shows only some without scrolling
        taken = page.evaluate(
            """async () => {
                const begin = performance.now();
                const { Table, byId } = await import("/page/dom.js");
                const { PEER_COLUMNS } = await import("/page/peers.js");
                const row = { run: "ab", rtt_ms: 1, path: "direct" };
                const rows = Array.from({ length: 200 }, (_, number) => ({ ...row, peer: `peer-${number}` }));
                new Table(byId("peers"), PEER_COLUMNS).update(rows);
                byId("peers").getBoundingClientRect();
                return performance.now() - begin;
            }"""
        )
        assert taken < 1000
        witness.is_content()
