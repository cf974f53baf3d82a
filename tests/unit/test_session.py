"""Access to the page: a browser shows the token once, then a cookie with which it may look; changes need a permit."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from http.cookies import SimpleCookie
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import aiohttp
import pytest
import pytest_asyncio
from aiohttp import web

from shoal.node.api.http import POLICY
from shoal.node.api.operations import Operations
from shoal.node.daemon.web.actions import MOST_AT_ONCE, PageActions
from shoal.node.daemon.web.server import serve_api
from shoal.node.daemon.web.session import LIFETIME, LOGINS, OFFERED, PERMIT_LIFETIME
from tests.fake_service import PEER, RUN, FakeService

TOKEN = "right-token"
COOKIE = f"shoal-{PEER[-8:]}"


def set_clock(monkeypatch: pytest.MonkeyPatch, now: float) -> None:
    clock = SimpleNamespace(time=lambda: now, monotonic=lambda: now)
    monkeypatch.setattr("shoal.node.daemon.web.session.time", clock)


class Browser:
    """Sends what a test says, and keeps no cookie by itself."""

    def __init__(self, http: aiohttp.ClientSession, base: str, service: FakeService) -> None:
        self.http, self.base, self.service = http, base, service
        self.cookie = ""

    async def __call__(self, method: str, path: str, body: object = None, **headers: str) -> int:
        """The status; our own page sends no header that a test does not give, but its origin."""
        sent = {"Origin": self.base, "Sec-Fetch-Site": "same-origin", "Cookie": self.cookie} | headers
        sent = {name.replace("_", "-"): value for name, value in sent.items() if value}
        data = None if body is None else json.dumps(body)
        async with self.http.request(method, self.base + path, data=data, headers=sent) as response:
            self.answer = await response.text() if response.content_type == "application/json" else ""
            self.set_cookie = response.headers.get("Set-Cookie", "")
            self.headers = response.headers
            return response.status

    async def log_in(self) -> str:
        """Have a cookie from now on; returns the permit."""
        assert await self("POST", "/v1/login", {"token": TOKEN}) == 200
        made = SimpleCookie(self.set_cookie)[COOKIE]
        self.cookie = f"{COOKIE}={made.value}"
        return str(json.loads(self.answer)["permit"])


@pytest_asyncio.fixture
async def browser() -> AsyncIterator[Browser]:
    service = FakeService()
    async with (
        serve_api(service, TOKEN, "127.0.0.1", 0) as (host, port),
        aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as http,
    ):
        yield Browser(http, f"http://{host}:{port}", service)


@pytest.mark.asyncio
async def test_the_token_is_shown_once_and_the_cookie_then_opens_what_can_be_read(browser: Browser) -> None:
    assert await browser("GET", "/v1/status") == 401
    await browser("GET", "/v1/login")
    assert json.loads(browser.answer) == {"in": False}
    await browser.log_in()
    cookie = SimpleCookie(browser.set_cookie)[COOKIE]
    assert cookie["httponly"]
    assert cookie["samesite"] == "Strict"
    assert TOKEN not in browser.set_cookie
    for path in ("/v1/status", "/v1/peers", "/v1/runs", f"/v1/runs/{RUN}/rounds", "/metrics"):
        assert await browser("GET", path) == 200
    await browser("GET", "/v1/login")
    assert json.loads(browser.answer) == {"in": True}


@pytest.mark.asyncio
@pytest.mark.parametrize("path", ["/v1/stop", "/v1/runs", f"/v1/runs/{RUN}/save", "/v1/login/code", "/v1/nowhere"])
async def test_what_the_page_does_not_offer_needs_the_token_itself(browser: Browser, path: str) -> None:
    permit = await browser.log_in()
    assert await browser("POST", path, {}, Shoal_Permit=permit) == 403
    assert browser.service.calls == []


LEAVE = f"/v1/runs/{RUN}/leave"


@pytest.mark.asyncio
async def test_a_change_needs_a_permit_besides_the_cookie(
    browser: Browser, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    permit = await browser.log_in()
    cookie = browser.cookie.partition("=")[2]
    expiry, _, mac = permit.partition(".")
    for wrong in ("", cookie, TOKEN, expiry, f"{int(expiry) + 1}.{mac}", f"{expiry}.{mac[:-1]}", f"{permit}0"):
        assert await browser("POST", LEAVE, {}, Shoal_Permit=wrong) == 401, wrong
    browser.cookie, logged_in = "", browser.cookie
    assert await browser("POST", LEAVE, {}, Shoal_Permit=permit) == 401
    browser.cookie = f"{COOKIE}={permit}"  # it is no cookie
    assert await browser("GET", "/v1/status") == 401
    browser.cookie = logged_in
    assert browser.service.calls == []
    assert await browser("POST", LEAVE, {}, Shoal_Permit=permit) == 200
    assert browser.service.calls == [("leave", RUN)]
    (line,) = [each for each in caplog.records if getattr(each, "code", "") == "page-action"]
    assert line.getMessage() == f"at the page, action 1: left the run {RUN[:8]}"
    set_clock(monkeypatch, time.time() + PERMIT_LIFETIME + 1)
    assert await browser("GET", "/v1/status") == 200
    assert await browser("POST", LEAVE, {}, Shoal_Permit=permit) == 401


@pytest.mark.asyncio
async def test_a_link_gives_no_permit(browser: Browser) -> None:
    assert await browser("POST", "/v1/login", {"code": await make_code(browser)}) == 200
    assert json.loads(browser.answer) == {"in": True}


@pytest.mark.asyncio
async def test_what_fails_is_noted_with_its_words(browser: Browser, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    permit = await browser.log_in()
    assert await browser("POST", "/v1/preview", {"link": "dead\x1b[2J"}, Shoal_Permit=permit) == 502
    assert await browser("POST", "/v1/runs/a%1b[2Jb/leave", {}, Shoal_Permit=permit) == 404
    assert await browser("POST", LEAVE, [], Shoal_Permit=permit) == 400
    lines = [each.getMessage() for each in caplog.records if getattr(each, "code", "") == "page-action"]
    assert lines[0] == "at the page, action 1: looked at a run; it failed: no peer answered"
    assert "left the run a?[2Jb; it failed: this node is in no run" in lines[1]
    assert len(lines) == 3
    assert "\x1b" not in "".join(lines)


@pytest.mark.asyncio
async def test_of_the_settings_the_page_changes_limits_alone(
    browser: Browser, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    permit = await browser.log_in()
    refused: list[Any] = [
        {"admin-host": "0.0.0.0"},
        {"max-up": "none", "data": ["/etc"]},
        {"max-up\ud800": 1},
        [],
        None,
    ]
    for wrong in refused:
        assert await browser("POST", "/v1/settings", {"settings": wrong}, Shoal_Permit=permit) == 403, wrong
    assert browser.service.calls == []
    changed = {"max-up": "20Mbit", "schedule": None, "yield-gpu": True}
    assert await browser("POST", "/v1/settings", {"settings": changed}, Shoal_Permit=permit) == 200
    assert browser.service.calls == [("settings", changed)]
    assert "changed settings: max-up = 20Mbit, schedule = none, yield-gpu = True" in caplog.text


@pytest.mark.asyncio
async def test_a_join_at_the_page_takes_no_path_and_is_noted_with_the_runs_name(
    browser: Browser, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    permit = await browser.log_in()
    join = {"link": RUN, "train": True}
    assert await browser("POST", "/v1/join", join | {"checkpoint": "/etc"}, Shoal_Permit=permit) == 403
    assert browser.service.calls == []
    assert await browser("POST", "/v1/join", join, Shoal_Permit=permit) == 200
    assert "joined a run stdlib" in caplog.text


@pytest.mark.asyncio
async def test_actions_that_go_on_at_once_are_bounded_and_one_that_is_broken_off_is_noted() -> None:
    actions, request = PageActions(), cast(web.Request, FakeRequest())

    async def goes_on(request: web.Request) -> web.StreamResponse:
        return await asyncio.get_running_loop().create_future()

    tasks = [asyncio.create_task(actions.note(Operations.join_run, request, goes_on)) for _ in range(MOST_AT_ONCE)]
    await asyncio.sleep(0)
    refused = await actions.note(Operations.join_run, request, goes_on)
    assert refused.status == 429
    for each in tasks:
        each.cancel()
    await asyncio.wait(tasks)
    assert [each["error"] for each in actions.recent()] == ["it was broken off"] * MOST_AT_ONCE


class FakeRequest:
    """A request without a body."""

    match_info: ClassVar[dict[str, str]] = {}

    async def read(self) -> bytes:
        return b""


def test_the_page_offers_nothing_by_which_files_are_written_or_other_logins_made() -> None:
    assert not OFFERED.keys() & {"create_run", "save_state", "fetch_experts", "login_code", "stop", "examine"}


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "http://127.0.0.1:1"},  # another port of this machine gets our cookie
        {"Origin": "null"},
        {"Sec_Fetch_Site": "same-site"},
        {"Origin": "", "Sec_Fetch_Site": "cross-site"},
    ],
)
async def test_a_foreign_page_gets_nothing_with_our_cookie(browser: Browser, headers: dict[str, str]) -> None:
    permit = await browser.log_in()
    assert await browser("POST", LEAVE, {}, Shoal_Permit=permit, **headers) == 403
    assert browser.service.calls == []
    assert await browser("GET", "/v1/status", **headers) == 403
    assert await browser("GET", "/v1/events", **headers) == 403
    assert await browser("POST", "/v1/logout", {}, **headers) == 403
    assert await browser("POST", "/v1/login", {"token": TOKEN}, **headers) == 403


@pytest.mark.asyncio
async def test_what_changes_something_must_say_where_it_comes_from(browser: Browser) -> None:
    permit = await browser.log_in()
    assert await browser("POST", LEAVE, {}, Shoal_Permit=permit, Origin="") == 403
    assert await browser("GET", "/v1/status", Origin="", Sec_Fetch_Site="") == 200
    assert await browser("POST", "/v1/logout", {}, Origin="") == 403


@pytest.mark.asyncio
async def test_logging_out_ends_it(browser: Browser) -> None:
    await browser.log_in()
    assert await browser("POST", "/v1/logout", {}) == 200
    assert SimpleCookie(browser.set_cookie)[COOKIE].value == ""
    assert "Max-Age=0" in browser.set_cookie


@pytest.mark.asyncio
async def test_a_made_up_or_old_cookie_opens_nothing(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    await browser.log_in()
    good = browser.cookie
    expiry, _, mac = good.partition("=")[2].partition(".")
    for value in (TOKEN, "", ".", expiry, f"{int(expiry) + 1}.{mac}", f"{expiry}.{mac[:-1]}", f"0{good}", "٣." + mac):
        browser.cookie = f"{COOKIE}={value}"
        assert await browser("GET", "/v1/status") == 401, value
    browser.cookie = good
    assert await browser("GET", "/v1/status") == 200
    set_clock(monkeypatch, time.time() + LIFETIME + 1)
    assert await browser("GET", "/v1/status") == 401


@pytest.mark.asyncio
async def test_tries_are_bounded_but_only_wrong_ones_count(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1e9
    set_clock(monkeypatch, now)
    for _ in range(30):
        await browser.log_in()
    browser.cookie = ""
    for _ in range(LOGINS[0]):
        assert await browser("POST", "/v1/login", {"token": "wrong"}) == 401
    assert await browser("POST", "/v1/login", {"token": TOKEN}) == 429
    set_clock(monkeypatch, now + 60)
    await browser.log_in()


@pytest.mark.asyncio
@pytest.mark.parametrize("token", ["\ud800", f"{TOKEN}\ud800", "", "é"])
async def test_whatever_is_shown_as_a_token_is_a_wrong_one(browser: Browser, token: str) -> None:
    assert await browser("POST", "/v1/login", {"token": token}) == 401


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:4180", "127.0.0.1.evil.example", "localhost.evil", "a:b"]
)
async def test_a_foreign_host_name_opens_nothing_to_a_browser(browser: Browser, host: str) -> None:
    permit = await browser.log_in()
    assert await browser("POST", LEAVE, {}, Host=host, Origin=f"http://{host}", Shoal_Permit=permit) == 403
    for path in ("/", "/v1/login", "/v1/status", "/v1/events", "/metrics"):
        assert await browser("GET", path, Host=host, Origin=f"http://{host}") == 403, path
    assert await browser("POST", "/v1/login", {"token": TOKEN}, Host=host, Origin=f"http://{host}") == 403


@pytest.mark.asyncio
@pytest.mark.parametrize("body", [None, {}, {"token": 1}, {"token": "a", "more": 1}, {"token": "a", "code": "b"}, []])
async def test_a_bad_login_is_the_callers_fault(browser: Browser, body: object) -> None:
    assert await browser("POST", "/v1/login", body) == 400


@pytest.mark.asyncio
async def test_everything_carries_the_policy_and_the_page_needs_no_login(browser: Browser) -> None:
    for path in ("/", "/page/app.js", "/page/style.css", "/page/vendor/uPlot.iife.min.js", "/v1/status", "/nowhere"):
        await browser("GET", path)
        assert browser.headers["Content-Security-Policy"] == POLICY
        assert browser.headers["X-Content-Type-Options"] == "nosniff"
    for source in ("unsafe", "*", "http"):
        assert source not in POLICY
    assert await browser("GET", "/") == 200
    assert browser.headers["Cache-Control"] == "no-cache"
    for path in ("/page/", "/page/../api.py", "/page/%2e%2e/api.py", "/page/..%2fapi.py", "/page//etc/passwd"):
        assert await browser("GET", path) in (401, 404), path


async def make_code(browser: Browser) -> str:
    assert await browser("POST", "/v1/login/code", {}, Authorization=f"Bearer {TOKEN}") == 200
    return str(json.loads(browser.answer)["code"])


@pytest.mark.asyncio
async def test_a_code_logs_in_once_and_for_looking_only(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    code = await make_code(browser)
    assert await browser("POST", "/v1/login", {"code": code}) == 200
    browser.cookie = f"{COOKIE}={SimpleCookie(browser.set_cookie)[COOKIE].value}"
    assert await browser("GET", "/v1/status") == 200
    assert await browser("POST", "/v1/login/code", {}) == 403  # a session does not beget others
    assert await browser("POST", "/v1/login", {"code": code}) == 401
    assert await browser("GET", "/v1/status", Authorization=f"Bearer {code}") == 401
    old = await make_code(browser)
    set_clock(monkeypatch, time.monotonic() + 3600)
    assert await browser("POST", "/v1/login", {"code": old}) == 401


@pytest.mark.asyncio
async def test_only_the_token_makes_codes_and_tries_are_bounded(
    browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_clock(monkeypatch, 1e9)
    assert await browser("POST", "/v1/login/code", {}) == 401
    for _ in range(LOGINS[0]):
        assert await browser("POST", "/v1/login", {"code": "guess"}) == 401
    assert await browser("POST", "/v1/login", {"code": await make_code(browser)}) == 429


@pytest.mark.asyncio
async def test_the_page_works_through_a_published_port_of_a_container() -> None:
    async with (
        serve_api(FakeService(), TOKEN, "0.0.0.0", 0) as (_, port),
        aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as http,
    ):
        seen = "127.0.0.1:8080"  # what the browser calls, and says
        browser = Browser(http, f"http://127.0.0.1:{port}", FakeService())
        headers = {"Host": seen, "Origin": f"http://{seen}"}
        assert await browser("POST", "/v1/login", {"token": TOKEN}, **headers) == 200
        made = SimpleCookie(browser.set_cookie)[COOKIE]
        browser.cookie = f"{COOKIE}={made.value}"
        assert await browser("GET", "/v1/status", **headers) == 200
