"""The page with a fake node: what it never does, whatever peers send and whatever happens to the node."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from shoal.node.api.answers import Answer
from tests.browser.kit import Witness, link, served
from tests.fake_service import RUN, FakeService

if TYPE_CHECKING:
    from playwright.sync_api import Browser

TOKEN = "right-token"
MARKUP = "<img src=x onerror=alert(1)>"


def test_what_peers_send_is_text_and_never_markup(browser: Browser) -> None:
    service = FakeService()
    service.news = {"name": MARKUP, "waiting_for": f"round 4 waits for {MARKUP}", "failure": None}
    row: Answer = {"peer": MARKUP, "run": RUN, "round": MARKUP, "path": MARKUP, "rtt_ms": None, "phase": MARKUP}
    service.peers = lambda: [row]  # type: ignore[method-assign]
    with served(service, TOKEN) as url:
        witness = Witness(browser, url)
        page = witness.page
        page.goto(link(url, TOKEN))
        page.wait_for_selector("#peers tbody tr")
        assert MARKUP in page.inner_text("#peers")
        assert MARKUP in page.inner_text(".run .notice")
        assert page.locator("main img").count() == 0
        witness.is_content()


def test_a_family_of_experts_is_a_card_of_its_parts(browser: Browser) -> None:
    service = FakeService()
    service.news = {"phase": "training", "experts": {"parts": 2, "finished": 1, "trains": "text"}}
    with served(service, TOKEN) as url:
        witness = Witness(browser, url)
        page = witness.page
        page.goto(link(url, TOKEN))
        page.wait_for_selector("table.parts tbody tr")
        rows = page.locator("table.parts tbody tr").all_inner_texts()
        assert [row.split("\t")[0].strip() for row in rows] == ["net", "text"]
        shares = page.locator("table.parts progress").evaluate_all("bars => bars.map((bar) => bar.value)")
        assert shares == [1, 0.2]
        assert "1 of 2" in page.inner_text(".run .tiles")
        assert page.locator(".run .plot").count() == 0
        witness.is_content()


def test_waiting_is_an_alarm_only_once_it_lasts_and_who_does_not_train_shows_no_training(browser: Browser) -> None:
    service = FakeService()
    service.news = {"phase": "matching", "waiting_for": "round 4 waits for abcdef", "trains": False}
    (one,) = service.rounds(RUN)

    def ended(*ago: float) -> None:
        rounds = [one | {"round": 3 - index, "applied_at": time.time() - each} for index, each in enumerate(ago)]
        service.rounds = lambda run, last=None: rounds[::-1]  # type: ignore[method-assign]

    ended(1, 61, 121)
    with served(service, TOKEN) as url:
        witness = Witness(browser, url)
        page = witness.page
        page.goto(link(url, TOKEN))
        page.wait_for_selector(".run .waiting >> text=round 4 waits for abcdef")
        assert page.inner_text(".run .notice") == ""
        assert "Inner step" not in page.inner_text(".run .tiles")
        assert page.locator(".run .key.own:visible").count() == 0
        assert page.locator("table.rounds td.odd").count() == 0, "the same member counts in no round: it does not train"
        ended(1000, 1060, 1120)
        page.wait_for_selector(".run .notice >> text=round 4 waits for abcdef")
        assert page.inner_text(".run .waiting") == ""
        witness.is_content()


def test_what_happened_to_a_run_that_had_gone_on_in_parts_stays_there(browser: Browser) -> None:
    service = FakeService()
    service.news = {"branch_event": "this node joins that of 3 members; 512 tokens count no more"}
    service.news["branch_event_at"] = time.time()
    with served(service, TOKEN) as url:
        witness = Witness(browser, url)
        page = witness.page
        page.goto(link(url, TOKEN))
        page.wait_for_selector(".run .history >> text=512 tokens count no more")
        witness.is_content()


def test_a_split_stands_there_with_its_evidence_and_goes(browser: Browser) -> None:
    service = FakeService()
    service.state, service.evidence = "SPLIT", "tiny: no quorum, as 3 of 6 voters are absent (aaaaaa, bbbbbb, cccccc)"
    with served(service, TOKEN) as url:
        witness = Witness(browser, url)
        page = witness.page
        page.goto(link(url, TOKEN))
        page.wait_for_selector("#state-word.bad:has-text('SPLIT')")
        assert page.inner_text("#headline") == f"The swarm is split: {service.evidence}."
        assert "Check this machine's network" in page.inner_text("#advice")
        service.state, service.evidence = "CONNECTED", None
        page.wait_for_selector("#state-word.calm:has-text('CONNECTED')")
        assert "split" not in page.inner_text("#headline")
        witness.is_content()


def test_the_policy_stops_what_the_page_does_not_do(browser: Browser) -> None:
    """The watch for violations is awake: each of these is one."""
    with served(FakeService(), TOKEN) as url:
        witness = Witness(browser, url)
        page = witness.page
        page.goto(url)
        page.evaluate(
            """() => {
                document.body.append(Object.assign(document.createElement("script"), {textContent: "window.ran = 1"}));
                document.body.insertAdjacentHTML("beforeend", "<p style='color: red'></p><base href='http://192.0.2.1/'>");
                document.body.append(Object.assign(new Image(), {src: "http://192.0.2.1/pixel.png"}));
                fetch("http://192.0.2.1/leak").catch(() => {});
            }"""
        )
        wanted = {"script-src-elem", "style-src-attr", "base-uri", "img-src", "connect-src"}
        witness.until("window.violations.length >= 5", "five violations")
        assert set(page.evaluate("window.violations")) == wanted
        assert page.evaluate("window.ran") is None


def test_a_node_that_comes_back_is_followed_without_another_login(browser: Browser) -> None:
    with served(FakeService(), TOKEN) as url:
        page = Witness(browser, url).page
        page.goto(link(url, TOKEN))
        page.wait_for_selector("#live.on")
    page.wait_for_selector("#live:not(.on)")
    assert page.inner_text("#live") == "connection lost"
    with served(FakeService(), TOKEN, int(url.rstrip("/").rpartition(":")[2])) as again:
        assert again == url
        page.wait_for_selector("#live.on")
        assert page.is_visible("#dashboard")


def test_a_node_with_another_token_asks_for_it(browser: Browser) -> None:
    with served(FakeService(), TOKEN) as url:
        page = Witness(browser, url).page
        page.goto(link(url, TOKEN))
        page.wait_for_selector("#live.on")
    with served(FakeService(), "another-token", int(url.rstrip("/").rpartition(":")[2])):
        page.wait_for_selector("#login:visible")
        page.goto(link(url, "another-token"))  # in the same tab: no new page is loaded
        page.wait_for_selector("#live.on")


def test_a_link_is_good_once_but_does_no_harm_to_who_is_in(browser: Browser) -> None:
    with served(FakeService(), TOKEN) as url:
        once = link(url, TOKEN)
        page = Witness(browser, url).page
        page.goto(once)
        page.wait_for_selector("#live.on")
        page.goto("about:blank")
        page.goto(once)
        page.wait_for_selector("#live.on")
        stranger = Witness(browser, url).page
        stranger.goto(once)
        stranger.wait_for_selector("#login:visible")
        assert "was used before" in stranger.inner_text("#login-error")


SIGHT = """(isHidden) => {
    Object.defineProperty(document, "hidden", { configurable: true, get: () => isHidden });
    document.dispatchEvent(new Event("visibilitychange"));
}"""


def test_only_the_page_in_sight_listens_so_any_number_can_be_open(browser: Browser) -> None:
    """A browser has six connections to a host, and each page that listens has one of them."""
    service = FakeService()
    with served(service, TOKEN) as url:
        witness = Witness(browser, url)
        witness.page.goto(link(url, TOKEN))
        witness.page.wait_for_selector("#live.on")
        for _ in range(7):
            witness.page.evaluate(SIGHT, True)
            another = witness.page.context.new_page()
            another.goto(url)
            another.wait_for_selector("#live.on")
            another.evaluate(SIGHT, True)
        service.news = {"name": "seen again"}
        witness.page.evaluate(SIGHT, False)
        witness.page.wait_for_selector(".run >> text=seen again")
        witness.is_content()


def test_the_keyboard_is_enough(browser: Browser) -> None:
    with served(FakeService(), TOKEN) as url:
        witness = Witness(browser, url)
        page = witness.page
        page.goto(url)
        page.wait_for_selector("#token:visible")
        page.keyboard.type(TOKEN)  # the field has the focus
        page.keyboard.press("Enter")
        page.wait_for_selector(".run table.rounds tbody tr")
        page.reload()
        page.wait_for_selector(".run table.rounds tbody tr")
        reached = []
        for _ in range(12):
            page.keyboard.press("Tab")
            reached.append(page.evaluate("document.activeElement.textContent.trim().slice(0, 5)"))
        buttons = ["Join ", "Pause", "Limit", "Stop ", "Invit", "Write", "Check", "Leave"]
        assert reached == ["Skip ", "Log o", *buttons, "Last ", "PeerR"], "the last two are tables, to scroll"
        page.focus("#logout")
        page.keyboard.press("Enter")
        page.wait_for_selector("#token:visible")
        page.reload()
        page.wait_for_selector("#token:visible")
        witness.is_content()
