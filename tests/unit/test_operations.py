"""The table of operations, and what follows from it: routes, client, daemon, fake node, docs/api.md."""

from __future__ import annotations

import inspect
import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from shoal.node.api.client import Client, path_and_body
from shoal.node.api.document import document
from shoal.node.api.operations import OPERATIONS, Operation, Operations
from shoal.node.base.home import Home
from shoal.node.base.options import NodeSettings
from shoal.node.daemon.daemon import Daemon
from shoal.node.daemon.web.server import make_app
from shoal.protocol.net.system.identity import Identity
from tests.answer_types import type_errors
from tests.fake_service import LINK, PEER, RUN, FakeService

ROOT = Path(__file__).parents[2]
GIVEN = {"run": RUN, "family": RUN, "round": 3, "link": LINK, "peer": PEER, "manifest": 'name = "a"', "train": False}
GIVEN |= {"last": 2, "checkpoint": "/c", "checkpoints": ("/c",), "path": "/state", "own": True, "folder": "/experts"}
GIVEN |= {"prompt": "Once", "max_tokens": 20, "nonce": "0f" * 16, "sure": True}
GIVEN |= {"seconds": 60.0, "within": 30.0, "settings": {"max-up": "5MB/s"}}


def test_every_operation_has_a_route_and_no_other_route_answers_programs() -> None:
    app = make_app(FakeService(), "token", "127.0.0.1")
    served = {(each.method, each.resource.canonical) for each in app.router.routes() if each.resource is not None}
    table = {(each.method, each.path) for each in OPERATIONS}
    browsers = {("GET", "/v1/login"), ("POST", "/v1/login"), ("POST", "/v1/logout"), ("GET", "/v1/events")}
    assert {each for each in served if each[1].startswith("/v1/") and each[0] != "HEAD"} == table | browsers
    assert len(table) == len(OPERATIONS) >= 20, "two operations are asked in the same way"


@pytest.mark.asyncio
async def test_every_operation_is_a_method_of_the_client_and_answered_by_the_daemon_and_the_fake(
    tmp_path: Path,
) -> None:
    names = {each.name for each in OPERATIONS}
    assert {name for name, each in inspect.getmembers(Client) if isinstance(each, Operation)} == names
    assert {each.operation.name for each in FakeService().handlers()} == names - {"login_code"}  # that is the door's
    daemon = Daemon(NodeSettings(tmp_path), Home(tmp_path).create(), Identity.generate())
    assert {each.operation.name for each in daemon.handlers()} == names - {"login_code"}


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda each: each.name)
def test_a_request_has_each_of_its_fields_in_one_place(operation: Operation[Any, Any]) -> None:
    names = [field.name for field in fields(operation.request)]  # type: ignore[arg-type]
    path, body = path_and_body(operation, operation.request(**{name: GIVEN[name] for name in names}))
    told = path.removeprefix("/v1/") + (body or "")
    for name in names:
        value = GIVEN[name]
        assert (str(value) in told) or (json.dumps(value) in told), f"{name} is not in {told}"
    assert (body is None) == (operation.method == "GET")
    assert "{" not in path


@pytest.mark.asyncio
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda each: each.name)
async def test_the_fake_answers_as_the_table_says(operation: Operation[Any, Any]) -> None:
    if operation.name == "login_code":
        return
    answer = next(each.answer for each in FakeService().handlers() if each.operation is operation)
    found = answer(**{field.name: GIVEN[field.name] for field in fields(operation.request)})  # type: ignore[arg-type]
    if operation.in_lines:
        lines = [line async for line in found]
        assert lines
        assert not [wrong for line in lines for wrong in type_errors(operation.answer, line)]
    else:
        value = await found if inspect.isawaitable(found) else found
        assert not list(type_errors(operation.answer, value))


def test_an_answer_of_another_shape_would_be_seen() -> None:
    assert list(type_errors(Operations.status.answer, {"state": 1})) == ["answer.state is 1, not <class 'str'>"]
    assert list(type_errors(Operations.status.answer, {"stale": "x"})) == ["answer.stale is unknown"]
    assert list(type_errors(Operations.peers.answer, [{"rtt_ms": "x"}]))
    lacking = "answer.peers is lacking"
    assert lacking in type_errors(Operations.status.answer, {"state": "SOLO"}, needs_all=True)


def test_the_page_about_the_api_is_the_tables() -> None:
    assert (ROOT / "docs/api.md").read_text(encoding="utf-8") == document(), (
        "print it anew: python -m shoal.node.api.document > docs/api.md"
    )
    assert all(f"`{each.method} {each.path}`" in document() for each in OPERATIONS)
