"""One rule for the keys of all request bodies: null is absent; others are used, ignored, refused, or unknown."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.node.diffusion.requests import ImagesRequest
from shoal.node.inference.http.body import RequestModel, parse_body
from shoal.node.inference.http.errors import UNSUPPORTED, BadRequest
from shoal.node.inference.http.requests import ChatRequest, CompletionRequest

KINDS: list[tuple[type[RequestModel], dict[str, Any]]] = [
    (CompletionRequest, {"model": "m", "prompt": "a"}),
    (ChatRequest, {"model": "m", "messages": [{"role": "user", "content": "a"}]}),
    (ImagesRequest, {"prompt": "7"}),
]


def refused(kind: type[RequestModel], body: Any) -> tuple[str, str | None, str | None]:
    """In which words, of which parameter, by which code."""
    with pytest.raises(BadRequest) as told:
        parse_body(kind, body)
    error = told.value.body["error"]
    return error["message"], error["param"], error["code"]


@pytest.mark.parametrize(("kind", "least"), KINDS)
def test_keys_that_mean_nothing(kind: type[RequestModel], least: dict[str, Any]) -> None:
    plain = parse_body(kind, least)
    assert parse_body(kind, least | {"user": "me", "seed": None, "colour": None}) == plain
    assert kind.neutral
    for key, allowed in kind.neutral.items():
        for value in allowed:
            assert parse_body(kind, least | {key: value}) == plain
        message, param, code = refused(kind, least | {key: "something else"})
        assert message.startswith(f"'{key}' must be ")
        assert (param, code) == (key, UNSUPPORTED)
    message, param, code = refused(kind, least | {"colour": 1, "seed": "x"})
    assert (message, param, code) == ("unknown or unsupported parameter 'colour'", "colour", UNSUPPORTED)


@pytest.mark.parametrize(("kind", "least"), KINDS)
def test_an_answer_does_not_give_back_a_long_name(kind: type[RequestModel], least: dict[str, Any]) -> None:
    message, param, _ = refused(kind, least | {"x" * 1_000_000: 1})
    assert len(message) <= 200
    assert param is not None
    assert len(param) <= 200


@pytest.mark.parametrize(("kind", "least"), KINDS)
def test_what_is_no_request_says_why(kind: type[RequestModel], least: dict[str, Any]) -> None:
    for name in least:
        rest = {key: value for key, value in least.items() if key != name}
        assert refused(kind, rest) == (f"you must provide '{name}'", name, None)
    assert refused(kind, [least]) == ("the body must be a JSON object", None, None)
    assert refused(kind, least | {"n": 0})[0].startswith("'n': ")


def test_the_values_that_are_taken_are_named_as_json() -> None:
    assert 'must be "auto" or "opaque" here' in refused(ImagesRequest, {"prompt": "7", "background": "red"})[0]
    assert "must be {} or [] here" in refused(CompletionRequest, KINDS[0][1] | {"logit_bias": {"5": 1}})[0]
