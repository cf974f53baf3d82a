"""Requests of well-known clients are accepted, our answers may be sent back, and an error names the exact key."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import openai
import pytest

from shoal.node.inference.http.body import MAX_NAME, parse_body
from shoal.node.inference.http.errors import UNSUPPORTED, BadRequest
from shoal.node.inference.http.requests import ChatRequest, CompletionRequest, Plan, Prompt
from shoal.node.inference.http.server import ListenOptions, serving
from tests.unit.serve.kit import Script, counting, served

USER: dict[str, Any] = {"role": "user", "content": "ab"}
CHAT: dict[str, Any] = {"model": "tiny", "messages": [USER]}
COMPLETION: dict[str, Any] = {"model": "tiny", "prompt": "ab"}


@asynccontextmanager
async def server(key: str = "") -> AsyncIterator[str]:
    async with serving(served(Script(counting)), ListenOptions(port=0, key=key)) as port:
        yield f"http://127.0.0.1:{port}"


@asynccontextmanager
async def openais(key: str = "any") -> AsyncIterator[openai.AsyncOpenAI]:
    async with server() as url, openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0) as client:
        yield client


# -- OpenAI's own client --------------------------------------------------------------------------------------

FULL: dict[str, Any] = {
    "frequency_penalty": 0,
    "function_call": "none",
    "functions": [],
    "logit_bias": {},
    "logprobs": True,
    "max_completion_tokens": 4,
    "metadata": {"task": "a"},
    "modalities": ["text"],
    "n": 2,
    "parallel_tool_calls": False,
    "prediction": {"type": "content", "content": "abc"},
    "presence_penalty": 0.0,
    "prompt_cache_key": "a",
    "reasoning_effort": "none",
    "response_format": {"type": "text"},
    "safety_identifier": "a",
    "seed": 7,
    "service_tier": "auto",
    "stop": ["\n"],
    "store": False,
    "temperature": 0,
    "tool_choice": "auto",
    "tools": [],
    "top_logprobs": 2,
    "top_p": 1,
    "user": "me",
    "verbosity": "medium",
}


@pytest.mark.asyncio
async def test_openais_client_may_use_all_its_parameters() -> None:
    messages: list[Any] = [
        {"role": "developer", "content": "be brief", "name": "us"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "name": "me"},
    ]
    async with openais() as client:
        whole: Any = await client.chat.completions.create(model="tiny", messages=messages, **FULL)
        assert len(whole.choices) == 2
        assert whole.usage.completion_tokens == 8
        parts = await client.chat.completions.create(  # type: ignore[call-overload]
            model="tiny", messages=messages, stream=True, stream_options={"include_usage": True}, **FULL | {"n": 1}
        )
        seen = [part async for part in parts]
        assert seen[-1].usage.completion_tokens == 4
        assert (
            "".join(part.choices[0].delta.content or "" for part in seen if part.choices)
            == whole.choices[0].message.content
        )
        raw: Any = {"best_of": 1, "echo": False, "logprobs": 0, "suffix": "", "user": "me", "logit_bias": {}, "seed": 3}
        for prompt in ("ab", [97, 98], ["ab", "cd"], [[97, 98], [99]]):
            told = await client.completions.create(model="tiny", prompt=prompt, max_tokens=2, temperature=0, **raw)
            assert told.choices[0].text == "cd"


@pytest.mark.asyncio
async def test_our_answers_may_be_sent_back_as_they_are() -> None:
    async with openais() as client:
        messages: list[Any] = [USER]
        for _ in range(3):
            answer = await client.chat.completions.create(model="tiny", messages=messages, max_tokens=3)
            messages.append(answer.choices[0].message)  # the object itself
            messages.append(answer.choices[0].message.model_dump())  # with all that is null
            messages.append(answer.to_dict()["choices"][0]["message"])  # type: ignore[index]
            messages.append({"role": "user", "content": "go on"})


SENT_BACK = [
    {"refusal": None, "annotations": None, "audio": None, "function_call": None, "tool_calls": None},
    {"refusal": "", "annotations": [], "tool_calls": [], "reasoning_content": None},
    {"annotations": [{"type": "url_citation"}], "reasoning_content": "hm", "id": "x", "provider_specific_fields": {}},
    {"name": None, "content": [{"type": "text", "text": "abc", "annotations": [], "cache_control": {"type": "e"}}]},
    {
        "thinking_blocks": [],
        "reasoning_details": [{"type": "reasoning.text", "text": "hm"}],
        "images": [],
        "prefix": False,
    },
    {"thinking_blocks": [{"type": "thinking"}], "thinking": "hm", "token_ids": [5], "citations": ["x"], "weight": 1},
]


@pytest.mark.parametrize("kind", [CompletionRequest, ChatRequest])
def test_what_clients_of_other_servers_always_send_changes_nothing(kind: type[Any]) -> None:
    least = CHAT if kind is ChatRequest else COMPLETION
    llama_cpp: dict[str, Any] = {
        "repeat_penalty": 1.0,
        "repeat_last_n": 64,
        "typical_p": 1.0,
        "mirostat": 0,
        "mirostat_tau": 5.0,
    }
    llama_cpp |= {"dry_multiplier": 0.0, "dry_base": 1.75, "xtc_probability": 0, "dynatemp_range": 0, "grammar": ""}
    llama_cpp |= {"n_probs": 0, "timings_per_token": False, "id_slot": -1, "tfs_z": 1, "cache_prompt": True}
    vllm: dict[str, Any] = {"use_beam_search": False, "length_penalty": 1.0, "stop_token_ids": [], "min_tokens": 0}
    vllm |= {"skip_special_tokens": True, "spaces_between_special_tokens": True, "early_stopping": False}
    vllm |= {"include_stop_str_in_output": False, "bad_words": [], "priority": 0, "return_token_ids": False}
    more: dict[str, Any] = {"do_sample": True, "num_beams": 1, "no_repeat_ngram_size": 0, "watermark": False}
    more |= {"think": False, "keep_alive": "5m", "options": {}, "transforms": [], "provider": {"sort": "price"}}
    more |= {"usage": {"include": True}, "extra_body": {}, "reasoning": {"effort": "none"}, "safe_prompt": False}
    sent = least | llama_cpp | vllm | more
    assert parse_body(kind, sent) == parse_body(kind, least)


def test_neutral_values_that_mean_something_for_one_kind_only() -> None:
    chat = {"add_generation_prompt": True, "continue_final_message": False, "chat_template_kwargs": {}, "documents": []}
    assert parse_body(ChatRequest, CHAT | chat) == parse_body(ChatRequest, CHAT)
    assert parse_body(ChatRequest, CHAT | {"add_special_tokens": False}) == parse_body(ChatRequest, CHAT)
    assert parse_body(CompletionRequest, COMPLETION | {"add_special_tokens": True}).n == 1
    for kind, body, key, value in (
        (CompletionRequest, COMPLETION, "add_special_tokens", False),
        (CompletionRequest, COMPLETION, "add_generation_prompt", True),
        (ChatRequest, CHAT, "chat_template_kwargs", {"enable_thinking": True}),
    ):
        with pytest.raises(BadRequest, match=key):
            parse_body(kind, body | {key: value})


@pytest.mark.parametrize("more", SENT_BACK)
def test_what_clients_keep_of_an_answer_changes_nothing(more: dict[str, Any]) -> None:
    def prompt(message: dict[str, Any]) -> tuple[int, ...]:
        asked = parse_body(ChatRequest, CHAT | {"messages": [USER, message, USER]})
        return asked.plan(served(Script(counting)), 0).jobs[0].prompt

    answered = {"role": "assistant", "content": "abc"}
    assert prompt(answered | more) == prompt(answered)


def test_an_answer_without_a_word_is_one() -> None:
    message: dict[str, Any]
    for message in ({"role": "assistant", "content": None, "tool_calls": []}, {"role": "assistant", "content": []}):
        asked = parse_body(ChatRequest, CHAT | {"messages": [USER, message, USER]})
        assert asked.messages[1].plain == {"role": "assistant", "content": ""}


def test_null_is_absent_at_every_depth() -> None:
    deep = {"messages": [{**USER, "name": None, "content": [{"type": "text", "text": "ab", "cache_control": None}]}]}
    more = {"stream_options": {"include_usage": None}, "response_format": {"type": "text", "json_schema": None}}
    more |= {"logit_bias": {"5": None}, "tools": None, "top_logprobs": None, "n": None, "stream": None}
    assert parse_body(ChatRequest, CHAT | deep | more).n == 1


def test_a_whole_number_may_be_written_as_a_fraction() -> None:
    asked = parse_body(CompletionRequest, COMPLETION | {"max_tokens": 4.0, "n": 2.0, "seed": 7.0, "prompt": [97.0, 98]})
    assert (asked.max_tokens, asked.n, asked.seed, asked.prompts) == (4, 2, 7, [Prompt([97, 98])])
    with pytest.raises(BadRequest, match="'max_tokens': Input should be a valid integer"):
        parse_body(CompletionRequest, COMPLETION | {"max_tokens": 4.5})


# -- errors ---------------------------------------------------------------------------------------------------

TEXT = {"type": "text", "text": "a"}
NAMED: list[tuple[dict[str, Any], str, str]] = [
    (
        CHAT | {"messages": [USER, {"role": "assistant", "content": "a", "refusal": "no"}]},
        "messages[1].refusal",
        'be "" ',
    ),
    (CHAT | {"messages": [{**USER, "tool_calls": [{"id": "x"}]}]}, "messages[0].tool_calls", "must be [] here"),
    (CHAT | {"messages": [{**USER, "audio": {"id": "x"}}]}, "messages[0].audio", "must be null here"),
    (CHAT | {"messages": [USER, {**USER, "colour": 1}]}, "messages[1].colour", "unknown or unsupported"),
    (CHAT | {"messages": [USER, {"content": "a"}]}, "messages[1].role", "you must provide"),
    (CHAT | {"messages": [USER, {"role": "user"}]}, "messages[1].content", "is missing"),
    (CHAT | {"messages": [USER, {"role": "tool", "content": "a"}]}, "messages[1].role", "'assistant'"),
    (CHAT | {"messages": [{"role": "user", "content": 5}]}, "messages[0].content", "a list of parts of type text"),
    (
        CHAT | {"messages": [{"role": "user", "content": [TEXT, {"type": "image_url"}]}]},
        "messages[0].content[1].type",
        "text",
    ),
    (
        CHAT | {"messages": [{"role": "user", "content": [TEXT, {"type": "text"}]}]},
        "messages[0].content[1].text",
        "provide",
    ),
    (CHAT | {"messages": [USER, "ab"]}, "messages[1]", "dictionary"),
    (CHAT | {"stream_options": {"include_usage": "yes"}}, "stream_options.include_usage", "boolean"),
    (CHAT | {"stop": ["a", ""]}, "stop[1]", "at least 1"),
    (CHAT | {"tool_choice": "required"}, "tool_choice", 'must be "none" or "auto" here'),
    (CHAT | {"reasoning_effort": "high"}, "reasoning_effort", 'must be "none" here'),
    (COMPLETION | {"prompt": 5}, "prompt", "must be a text, a list of texts"),
    (COMPLETION | {"prompt": ["a", 5]}, "prompt[1]", "of another kind"),
    (COMPLETION | {"prompt": [5, -1]}, "prompt[1]", "no token"),
    (COMPLETION | {"prompt": [[5], [5, "a"]]}, "prompt[1][1]", "no token"),
    (COMPLETION | {"prompt": [{}]}, "prompt[0]", "no text, token"),
    (COMPLETION | {"top_k": 40}, "top_k", "must be -1 or 0 here"),
    (COMPLETION | {"repeat_penalty": 1.1}, "repeat_penalty", "must be 1 here"),
    (CHAT | {"messages": [USER, {"role": "tool", "content": "a", "tool_call_id": "1"}]}, "messages[1].role", "'user'"),
    (CHAT | {"messages": [{**USER, "content": [{"type": "image", "x": 1}]}]}, "messages[0].content[0].type", "'text'"),
    (CHAT | {"\ud800": 1}, "\\ud800", "unknown or unsupported"),
    (CHAT | {"messages": [{**USER, "content": "cut \ud83d"}]}, "messages[0].content", "half of a character, \\ud83d"),
    (
        CHAT | {"messages": [{**USER, "content": [TEXT, TEXT | {"text": "\udfff"}]}]},
        "messages[0].content[1].text",
        "half",
    ),
    (COMPLETION | {"prompt": ["a", "\ud83d"]}, "prompt[1]", "half of a character"),
    (COMPLETION | {"stop": "\ud83d"}, "stop", "half of a character"),
    (COMPLETION | {"model": "\ud83d"}, "model", "half of a character"),
    (CHAT | {"messages": [{**USER, "a\udfffb": 1}]}, "messages[0].a\\udfffb", "unknown or unsupported"),
    (CHAT | {"stream_options": {"\ud800": 1}}, "stream_options.\\ud800", "unknown or unsupported"),
]


@pytest.mark.parametrize(("body", "param", "words"), NAMED, ids=[each[1] for each in NAMED])
def test_an_error_names_the_very_key(body: dict[str, Any], param: str, words: str) -> None:
    with pytest.raises(BadRequest) as told:
        parse_body(ChatRequest if "messages" in body else CompletionRequest, body)
    error = told.value.body["error"]
    assert error["param"] == param
    assert f"'{param}'" in error["message"]
    assert words in error["message"]
    is_unsupported = "here: another value" in error["message"] or "unknown" in error["message"]
    assert error["code"] == (UNSUPPORTED if is_unsupported else None)


PLANNED: list[tuple[dict[str, Any], str, str]] = [
    (COMPLETION | {"prompt": ""}, "prompt", "is empty"),
    (COMPLETION | {"prompt": []}, "prompt", "is empty"),
    (COMPLETION | {"prompt": [""]}, "prompt[0]", "is empty"),
    (COMPLETION | {"prompt": ["a", ""]}, "prompt[1]", "is empty"),
    (COMPLETION | {"prompt": [[1], []]}, "prompt[1]", "is empty"),
    (COMPLETION | {"prompt": [1, 999]}, "prompt[1]", "the token 999"),
    (COMPLETION | {"prompt": [[1], [2, 3, 999]]}, "prompt[1][2]", "the token 999"),
    (COMPLETION | {"prompt": [[999]]}, "prompt[0][0]", "the token 999"),
    (COMPLETION | {"prompt": "a" * 100}, "prompt", "has 100 tokens"),
    (COMPLETION | {"prompt": [1] * 100}, "prompt", "has 100 tokens"),
    (COMPLETION | {"prompt": ["a", "a" * 100]}, "prompt[1]", "has 100 tokens"),
    (COMPLETION | {"max_tokens": 60}, "max_tokens", "2 tokens of 'prompt' and 60 to write"),
    (COMPLETION | {"prompt": ["a", "a" * 40], "max_tokens": 30}, "max_tokens", "40 tokens of 'prompt[1]' and 30"),
    (COMPLETION | {"prompt": ["a"] * 17}, "prompt", "at most 16"),
    (COMPLETION | {"prompt": ["a"] * 10, "n": 10}, "n", "10 prompts with n = 10: at most 16"),
    (CHAT | {"messages": [{**USER, "content": "a" * 100}]}, "messages", "this model's context"),
    (CHAT | {"max_tokens": 60}, "max_tokens", "60 to write"),
    (CHAT | {"max_completion_tokens": 60}, "max_completion_tokens", "60 to write"),
    (CHAT | {"max_completion_tokens": 60, "max_tokens": 1}, "max_completion_tokens", "60 to write"),
]


def planned(body: dict[str, Any]) -> Plan:
    """The plan of a request, for a model with a context of 50 tokens."""
    model = served(Script(counting, limit=50))
    if "messages" in body:
        return parse_body(ChatRequest, body).plan(model, 0)
    return parse_body(CompletionRequest, body).plan(model, 0)


@pytest.mark.parametrize(("body", "param", "words"), PLANNED)
def test_what_does_not_fit_the_model_is_named_by_its_key_and_place(
    body: dict[str, Any], param: str, words: str
) -> None:
    with pytest.raises(BadRequest) as told:
        planned(body)
    error = told.value.body["error"]
    assert error["param"] == param
    assert f"'{param}'" in error["message"]
    assert words in error["message"]


@pytest.mark.asyncio
async def test_too_many_texts_are_blamed_on_what_asks_for_them() -> None:
    async with serving(served(Script(counting, slots=1)), ListenOptions(port=0, waiting=1)) as port:
        url = f"http://127.0.0.1:{port}/v1/completions"
        async with aiohttp.ClientSession() as session:
            for more, param in (({"n": 9}, "n"), ({"prompt": ["a"] * 9}, "prompt")):
                async with session.post(url, json=COMPLETION | more) as answer:
                    assert answer.status == 400
                    assert (await answer.json())["error"]["param"] == param


def test_an_error_of_a_long_path_is_short_and_a_deep_body_none_of_ours() -> None:
    with pytest.raises(BadRequest) as told:
        parse_body(ChatRequest, CHAT | {"messages": [{**USER, "x" * 1_000_000: 1}]})
    assert len(told.value.body["error"]["param"]) <= MAX_NAME
    deep: Any = []
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(BadRequest, match="nested too deeply"):
        parse_body(ChatRequest, CHAT | {"metadata": deep})


# -- over HTTP ------------------------------------------------------------------------------------------------

RAW = json.dumps(CHAT | {"max_tokens": 2}).encode()
JSON = {"Content-Type": "application/json"}
PAGE = {"Origin": "http://elsewhere.example"}


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("headers", "body", "status"),
    [
        (JSON, RAW, 200),
        ({"Content-Type": "application/json; charset=UTF-8"}, b"\xef\xbb\xbf" + RAW, 200),
        ({"Content-Type": "application/json; charset=utf-16"}, RAW.decode().encode("utf-16"), 200),
        ({"Content-Type": "application/json; charset=Latin1"}, RAW, 200),
        ({"Content-Type": "application/json; charset=klingon"}, RAW, 400),
        ({"Content-Type": "application/json; charset=punycode"}, RAW + b"-", 400),
        ({"Content-Type": "application/json; charset=utf-7"}, RAW, 400),
        ({"Content-Type": "application/vnd.api+json"}, RAW, 200),
        ({"Content-Type": ""}, RAW, 200),  # none
        ({"Content-Type": "application/x-www-form-urlencoded"}, RAW, 200),  # curl -d, without more
        ({"Content-Type": "text/plain"}, RAW, 400),
        ({"Content-Type": "", **PAGE}, RAW, 400),
        ({"Content-Type": "application/x-www-form-urlencoded", "Sec-Fetch-Site": "cross-site"}, RAW, 400),
        (JSON | {"Authorization": "Bearer whatever"}, RAW, 200),
        (JSON | {"Authorization": "Basic YTpi"}, RAW, 200),
        (JSON, b"", 400),
        (JSON, b"\xe9", 400),
    ],
)
async def test_a_body_is_taken_by_what_it_is(headers: dict[str, str], body: bytes, status: int) -> None:
    skip = [] if headers["Content-Type"] else ["Content-Type"]
    sent = {name: value for name, value in headers.items() if value}
    async with (
        server() as url,
        aiohttp.ClientSession(skip_auto_headers=skip) as session,
        session.post(f"{url}/v1/chat/completions", data=body, headers=sent) as answer,
    ):
        assert answer.status == status, await answer.text()
        assert ("error" in await answer.json()) == (status != 200)


@pytest.mark.asyncio
async def test_paths_are_found_with_a_slash_more_or_less() -> None:
    async with server() as url, aiohttp.ClientSession() as session:
        for path in ("/v1/models", "/v1/models/", "/models", "/v1//models", "/v1/models/tiny", "/v1/models/tiny/"):
            async with session.get(url + path) as answer:
                assert answer.status == 200, path
            async with session.head(url + path) as answer:
                assert answer.status == 200, path
        for path in ("/v1/chat/completions/", "/chat/completions", "/v1//chat/completions"):
            async with session.post(url + path, data=RAW, headers=JSON) as answer:
                assert answer.status == 200, path
        async with session.get(f"{url}/metrics") as answer:
            text = await answer.text()
        assert 'shoal_serve_requests_total{route="/v1/chat/completions",status="200"} 3.0' in text
        assert 'route="/chat/completions"' not in text
        for path, said in (("/v1/embeddings", "there is no /v1/embeddings here, but"), ("/api/tags", "/v1/models")):
            async with session.post(url + path, data=RAW, headers=JSON) as answer:
                assert answer.status == 404
                assert said in (await answer.json())["error"]["message"]
        async with session.get(f"{url}/v1/chat/completions") as answer:
            assert (answer.status, answer.headers["Allow"]) == (405, "POST")
            assert "is asked by POST, not by GET" in (await answer.json())["error"]["message"]
        async with session.options(f"{url}/v1/chat/completions") as answer:
            assert (answer.status, answer.headers["Allow"]) == (204, "OPTIONS, POST")


PREFLIGHT = {
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization,content-type,x-a",
}


@pytest.mark.asyncio
async def test_pages_of_other_origins_may_ask_who_has_a_key_and_nobody_else() -> None:
    async with server(key="secret") as url, aiohttp.ClientSession() as session:
        path = f"{url}/v1/chat/completions"
        async with session.options(path, headers=PAGE | PREFLIGHT) as answer:
            assert answer.status == 204
            assert answer.headers["Access-Control-Allow-Origin"] == "*"
            assert answer.headers["Access-Control-Allow-Headers"] == "authorization,content-type,x-a"
            assert "POST" in answer.headers["Access-Control-Allow-Methods"]
        for stream in (False, True):
            sent = CHAT | {"max_tokens": 2, "stream": stream}
            async with session.post(path, json=sent, headers=PAGE | {"Authorization": "bearer secret"}) as answer:
                assert (answer.status, answer.headers["Access-Control-Allow-Origin"]) == (200, "*")
        async with session.post(path, json=CHAT, headers=PAGE) as answer:
            assert (answer.status, answer.headers["Access-Control-Allow-Origin"]) == (401, "*")
        async with session.get(f"{url}/v1/models", headers={"api-key": "secret"}) as answer:
            assert answer.status == 200
            assert "Access-Control-Allow-Origin" not in answer.headers
    async with (
        server() as url,
        aiohttp.ClientSession() as session,
        session.options(f"{url}/v1/chat/completions", headers=PAGE | PREFLIGHT) as answer,
    ):
        assert answer.status == 403
        assert "--api-key" in (await answer.json())["error"]["message"]
        assert "Access-Control-Allow-Origin" not in answer.headers


@pytest.mark.asyncio
async def test_what_is_ignored_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "shoal.serve")
    named: Any = {**USER, "name": "me"}
    async with openais() as client:
        for _ in range(2):
            await client.chat.completions.create(model="tiny", messages=[named], user="me", store=True, max_tokens=2)
    said = [record.getMessage() for record in caplog.records if "ignored" in record.getMessage()]
    assert said == ["what clients send as user, store, messages[].name is ignored, as it would change no answer"]
