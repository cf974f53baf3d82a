"""The admin API: only its owner gets in, every answer is JSON, and an error says whose fault it is."""

from __future__ import annotations

import asyncio
import errno
import json
import socket
from collections.abc import AsyncIterator
from typing import Any
from unittest.mock import AsyncMock

import aiohttp
import pytest
import pytest_asyncio

from shoal.node.api.errors import UnknownRun, find_run
from shoal.node.base.qr import qr_rows
from shoal.node.base.room import NoRoom
from shoal.node.daemon.web.server import MAX_BODY, serve_api
from shoal.protocol.base.errors import LocalError
from shoal.protocol.net.system.version import shoal_version
from tests.fake_service import ENTERED, EXAMINED, LINK, PEER, RUN, FakeService

TOKEN = "right-token"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
Answer = tuple[int, Any]


class Caller:
    """Calls a served API as its owner, unless the headers say otherwise."""

    def __init__(self, session: aiohttp.ClientSession, base: str, service: FakeService) -> None:
        self.session, self.base, self.service = session, base, service

    async def __call__(self, method: str, path: str, body: object = None, **headers: str) -> Answer:
        sent = BEARER | headers
        data = body if isinstance(body, bytes) else None if body is None else json.dumps(body)
        async with self.session.request(method, self.base + path, data=data, headers=sent) as response:
            assert response.headers["Shoal-Version"] == shoal_version()
            assert response.headers["Server"] == f"shoal/{shoal_version()}"
            assert not [name for name in response.headers if name.lower().startswith("access-control")]
            return response.status, await response.json()


@pytest_asyncio.fixture
async def call() -> AsyncIterator[Caller]:
    service = FakeService()
    async with (
        serve_api(service, TOKEN, "127.0.0.1", 0) as (host, port),
        aiohttp.ClientSession() as session,
    ):
        yield Caller(session, f"http://{host}:{port}", service)


@pytest.mark.asyncio
async def test_a_want_of_memory_or_disk_is_the_machines(call: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    full = OSError(errno.ENOSPC, "No space left on device", "/x")
    errors = {"memory has run out: ": MemoryError(), "the disk of /x is full": full, "too large": NoRoom("too large")}
    for said, error in errors.items():
        monkeypatch.setattr(call.service, "create_run", AsyncMock(side_effect=error))
        status, answer = await call("POST", "/v1/runs", {"manifest": "", "train": True})
        assert (status, answer["blame"]) == (507, "machine")
        assert answer["error"].startswith(said)


@pytest.mark.asyncio
async def test_what_the_system_refuses_is_no_mistake_of_the_node(call: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = PermissionError(errno.EACCES, "Permission denied", "/x")
    errors = {
        "cannot use /x: Permission denied": refused,
        "is not UTF-8": UnicodeEncodeError("utf-8", "\udcff", 0, 1, ""),
    }
    for said, error in errors.items():
        monkeypatch.setattr(call.service, "create_run", AsyncMock(side_effect=error))
        status, answer = await call("POST", "/v1/runs", {"manifest": "", "train": True})
        assert (status, answer["blame"]) == (500, "machine")
        assert said in answer["error"]


@pytest.mark.asyncio
async def test_an_examination_comes_line_by_line(call: Caller) -> None:
    async with call.session.post(f"{call.base}/v1/doctor", data='{"peer": "x"}', headers=BEARER) as response:
        assert (response.status, response.content_type) == (200, "application/x-ndjson")
        assert [json.loads(line) async for line in response.content] == EXAMINED
    assert await call("POST", "/v1/doctor", {"peer": "nobody"}) == (
        400,
        {"error": "no peer 'nobody' is known here", "blame": "caller", "code": "not-possible"},
    )
    assert (await call("POST", "/v1/doctor", {"who": "x"}))[0] == 400
    assert (await call("POST", "/v1/doctor", {"peer": "x"}, Authorization="Bearer wrong"))[0] == 401


@pytest.mark.asyncio
async def test_reads(call: Caller) -> None:
    status, answer = await call("GET", "/v1/status")
    assert (status, answer["peer"]) == (200, PEER)
    assert (await call("GET", "/v1/peers"))[1] == call.service.peers()
    assert (await call("GET", "/v1/runs"))[1] == call.service.status()["runs"]
    assert (await call("GET", "/v1/runs/stdlib"))[1]["run"] == RUN
    assert (await call("GET", f"/v1/runs/{RUN[:8]}/rounds"))[1] == call.service.rounds(RUN)


@pytest.mark.asyncio
async def test_the_last_rounds_alone(call: Caller) -> None:
    asked: list[int | None] = []

    def rounds(run: str, last: int | None = None) -> list[dict[str, Any]]:
        asked.append(last)
        return []

    call.service.rounds = rounds  # type: ignore[method-assign]
    for query in ("", "?last=7", "?last=999999999"):
        assert (await call("GET", f"/v1/runs/{RUN}/rounds{query}"))[0] == 200
    assert asked == [None, 7, 999999999]
    for wrong in ("0", "-1", "x", "1.5", "9" * 10, "9" * 5000, "%D9%A3", ""):
        assert (await call("GET", f"/v1/runs/{RUN}/rounds?last={wrong}"))[0] == 400, wrong


@pytest.mark.asyncio
async def test_the_timeline_of_a_round(call: Caller) -> None:
    assert await call("GET", "/v1/runs/stdlib/rounds/3") == (200, call.service.timeline(RUN, 3))
    assert await call("GET", f"/v1/runs/{RUN}/rounds/4") == (
        404,
        {"error": "nothing is known of round 4", "blame": "caller", "code": "unknown-round"},
    )
    assert (await call("GET", "/v1/runs/ffffffff/rounds/3"))[0] == 404
    for wrong in ("0", "x", "-1", "9" * 10):
        assert (await call("GET", f"/v1/runs/{RUN}/rounds/{wrong}"))[0] == 400, wrong


@pytest.mark.asyncio
async def test_writes(call: Caller) -> None:
    assert (await call("POST", "/v1/runs", {"manifest": "name='a'", "train": False}))[0] == 200
    assert (await call("POST", f"/v1/runs/{RUN}/join", {"train": True}))[0] == 200
    assert (await call("POST", "/v1/preview", {"link": LINK}))[1]["name"] == "stdlib"
    joined = await call("POST", "/v1/join", {"link": LINK, "train": False, "checkpoint": "/round"})
    assert joined == (200, ENTERED)
    assert (await call("GET", "/v1/runs/stdlib/link")) == (200, ENTERED | {"qr": qr_rows(LINK)})
    assert (await call("GET", "/v1/runs/ffffffff/link"))[0] == 404
    assert (await call("POST", "/v1/runs/stdlib/leave", {}))[0] == 200
    assert (await call("POST", "/v1/runs/stdlib/save", {"path": "/x/state.safetensors"}))[1]["round"] == 3
    assert (await call("POST", "/v1/runs/stdlib/save", {"path": "/x", "own": True}))[0] == 200
    assert (await call("POST", "/v1/stop", {}))[0] == 202
    assert call.service.calls == [
        ("create", "name='a'", False),
        ("join", RUN, True),
        ("preview", LINK),
        ("join", LINK, False, "/round"),
        ("leave", RUN),
        ("save", "stdlib", "/x/state.safetensors"),
        ("save", "stdlib", "/x", "own"),
        ("stop",),
    ]


@pytest.mark.asyncio
@pytest.mark.parametrize("shown", ["", "Bearer", "Bearer wrong", f"Basic {TOKEN}", TOKEN, f"Bearer {TOKEN} "[:-2]])
async def test_without_the_token_nothing_is_answered_or_done(call: Caller, shown: str) -> None:
    assert (await call("GET", "/v1/status", Authorization=shown))[0] == 401
    assert (await call("POST", "/v1/stop", {}, Authorization=shown))[0] == 401
    assert (await call("GET", "/v1/nowhere", Authorization=shown))[0] == 401
    assert call.service.calls == []


@pytest.mark.asyncio
@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:80", "127.0.0.1:4180", "[::1]:4180", "192.0.2.7"])
async def test_an_address_or_localhost_may_be_called_by_anybody(call: Caller, host: str) -> None:
    assert (await call("GET", "/v1/login", Host=host, Authorization=""))[0] == 200
    assert (await call("GET", "/v1/status", Host=host))[0] == 200


@pytest.mark.asyncio
async def test_any_other_name_needs_the_token(call: Caller) -> None:
    """As a scraper in the same container network has it."""
    async with call.session.get(f"{call.base}/metrics", headers=BEARER | {"Host": "bootstrap:4180"}) as response:
        assert response.status == 200
    for shown in ("", "Bearer wrong"):
        assert (await call("GET", "/v1/status", Host="bootstrap:4180", Authorization=shown))[0] == 403


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("run", "status", "blame"),
    [("bad00000", 502, "peer"), ("dead0000", 502, "network"), ("b09b09b0", 500, "node")],
)
async def test_an_error_says_whose_fault_it_is(call: Caller, run: str, status: int, blame: str) -> None:
    code, answer = await call("POST", "/v1/preview", {"link": run})
    assert (code, answer["blame"]) == (status, blame)
    assert "ZeroDivision" not in answer["error"]


@pytest.mark.asyncio
async def test_what_is_not_there_is_404(call: Caller) -> None:
    for path in ("/page/nowhere", "/page/../api.py", "/v1/nowhere", "/v1/runs/ffffffff"):
        status, answer = await call("GET", path)
        assert (status, answer["blame"]) == (404, "caller")
    assert (await call("POST", "/v1/status", {}))[0] == 405


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"\xff",
        b"[" * 100_000,
        [],
        {},
        {"train": 1},
        {"train": "yes"},
        {"train": None},
        {"train": True, "force": True},
    ],
)
async def test_a_bad_body_changes_nothing(call: Caller, body: object) -> None:
    status, answer = await call("POST", f"/v1/runs/{RUN}/join", body)
    assert (status, answer["blame"]) == (400, "caller")
    assert call.service.calls == []


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        (f"/v1/runs/{RUN}/join", {}, "the body lacks 'train': it must be true or false"),
        (f"/v1/runs/{RUN}/join", {"train": None}, "the body lacks 'train': it must be true or false"),
        (f"/v1/runs/{RUN}/join", {"train": 1}, "the body's 'train' must be true or false, not a number"),
        (f"/v1/runs/{RUN}/join", {"train": True, "x": 1}, "unknown key 'x' in the body: it may have checkpoint, train"),
        ("/v1/runs", {"manifest": "", "train": True, "checkpoints": ["/a", 1]}, "'checkpoints[1]' must be a text"),
        ("/v1/stop", {"x": 1}, "unknown key 'x' in the body: it has none here"),
    ],
)
async def test_a_bad_body_is_named_by_its_key(call: Caller, path: str, body: object, words: str) -> None:
    status, answer = await call("POST", path, body)
    assert status == 400
    assert words in answer["error"]


@pytest.mark.asyncio
@pytest.mark.parametrize("charset", ["no-such-encoding", "utf-16", "latin-1"])
async def test_a_body_is_utf8_whatever_its_header_says(call: Caller, charset: str) -> None:
    sent = BEARER | {"Content-Type": f"application/json; charset={charset}"}
    body = '{"train": true, "ü": 1}'.encode()
    async with call.session.post(f"{call.base}/v1/runs/{RUN}/join", data=body, headers=sent) as response:
        assert (response.status, "unknown key 'ü'" in (await response.json())["error"]) == (400, True)


@pytest.mark.asyncio
async def test_what_is_null_is_absent(call: Caller) -> None:
    status, _ = await call("POST", f"/v1/runs/{RUN}/join", {"train": True, "checkpoint": None})
    assert status == 200


@pytest.mark.asyncio
async def test_a_refused_manifest_is_the_callers_fault(call: Caller) -> None:
    status, answer = await call("POST", "/v1/runs", {"manifest": "typo = 1", "train": True})
    assert (status, answer["error"]) == (400, "manifest: unknown key 'typo'; the nearest known key is 'model'")


@pytest.mark.asyncio
@pytest.mark.parametrize("checkpoints", ["/round", [1], ["/round", None]])
async def test_checkpoints_are_a_list_of_folders(call: Caller, checkpoints: object) -> None:
    body = {"manifest": "name = 'a'", "train": True, "checkpoints": checkpoints}
    status, answer = await call("POST", "/v1/runs", body)
    assert (status, answer["blame"]) == (400, "caller")
    assert call.service.calls == []


@pytest.mark.asyncio
async def test_a_body_has_a_size(call: Caller) -> None:
    assert (await call("POST", "/v1/runs", {"manifest": "#" * MAX_BODY, "train": True}))[0] == 413


@pytest.mark.asyncio
async def test_a_taken_port_means_the_next_one_said_aloud(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        wanted = taken.getsockname()[1]
        async with serve_api(FakeService(), TOKEN, "127.0.0.1", wanted) as (_, port):
            assert wanted < port < wanted + 100
    assert f"admin port {wanted} is taken" in caplog.text


@pytest.mark.asyncio
@pytest.mark.parametrize("host", ["192.0.2.7", "no-such-host.invalid"])
async def test_a_host_that_is_not_ours_is_a_local_error(host: str) -> None:
    with pytest.raises(LocalError, match="--admin-host"):
        async with serve_api(FakeService(), TOKEN, host, 0):
            pass


@pytest.mark.asyncio
async def test_the_port_is_free_afterwards() -> None:
    async with serve_api(FakeService(), TOKEN, "127.0.0.1", 0) as (host, port):
        reader, writer = await asyncio.open_connection(host, port)
    assert await reader.read() == b""
    writer.close()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(host, port)


KNOWN = {"aa" * 32: "one", "ab" * 32: "two", "aa" * 4 + "bb" * 28: "two"}


@pytest.mark.parametrize(("wanted", "run"), [("one", "aa" * 32), ("aa" * 32, "aa" * 32), ("ABABABAB", "ab" * 32)])
def test_a_run_is_found_by_name_id_or_prefix(wanted: str, run: str) -> None:
    assert find_run(wanted, KNOWN) == run


@pytest.mark.parametrize("wanted", ["two", "aaaaaaaa", "abababa", "ffffffff", ""])
def test_an_unclear_run_is_unknown(wanted: str) -> None:
    with pytest.raises(UnknownRun):
        find_run(wanted, KNOWN)


def test_what_is_a_run_and_no_family_is_said_to_be_no_family() -> None:
    with pytest.raises(UnknownRun, match=r"^this node is in no family 'other'; it is in none$"):
        find_run("other", {}, "family")
