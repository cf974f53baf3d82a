"""A real `shoal serve` and OpenAI's own client: models, completions and conversations, whole and as streams.

And what a server must stand: many at once, clients that hang up or never read, wrong input, a crowd.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from shoal.node.base.home import Home
from shoal.node.manifest.manifest import Manifest, ModelSpec
from tests.unit.checkpoint_kit import write

openai = pytest.importorskip("openai", reason="openai IS NOT INSTALLED: see `make install`")

CONTEXT = 4096
MODEL = ModelSpec(dim=32, layers=2, heads=2, kv_heads=1, hidden=48, context=CONTEXT)
ENDLESS = {"ignore_eos": True}
SAID = [{"role": "user", "content": "x"}]


@dataclass(frozen=True)
class Server:
    """A running one."""

    url: str

    @property
    def client(self) -> Any:
        return openai.OpenAI(base_url=self.url, api_key="any", max_retries=0, timeout=60)

    @property
    def address(self) -> tuple[str, int]:
        found = re.search(r"//([^:]+):(\d+)", self.url)
        assert found is not None
        return found[1], int(found[2])

    def about(self) -> dict[str, Any]:
        """The server's status of its slots."""
        with urllib.request.urlopen(f"{self.url}/models", timeout=30) as answer:
            told: dict[str, Any] = json.load(answer)["data"][0]["shoal"]
        return told

    def post(self, path: str, body: bytes, kind: str = "application/json") -> tuple[int, Any, Any]:
        """Status, body, headers."""
        request = urllib.request.Request(f"{self.url}/{path}", body, {"Content-Type": kind})
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, json.load(answer), answer.headers
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error), error.headers


def start(
    source: Path | str, *flags: str, home: Home | None = None, stderr: int | None = None
) -> tuple[subprocess.Popen[str], Server]:
    command = [sys.executable, "-m", "shoal.node", "serve", str(source), "--port", "0", "--threads", "1", *flags]
    environ = os.environ | {"OMP_NUM_THREADS": "1"} | ({"SHOAL_HOME": str(home.root)} if home is not None else {})
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True, env=environ)
    assert process.stdout is not None
    line = process.stdout.readline()
    found = re.search(r"http://\S+", line)
    assert found is not None, line
    return process, Server(found[0])


def end(process: subprocess.Popen[str]) -> int:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    code = process.wait(30)
    assert process.stdout is not None
    process.stdout.close()
    return code


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("run") / "checkpoints", 4, Manifest(name="tiny", model=MODEL))


@pytest.fixture(scope="module")
def server(checkpoint: Path) -> Iterator[Server]:
    process, server = start(checkpoint, "--slots", "32", "--waiting", "40")
    yield server
    assert end(process) == 0


def until(true: Callable[[], bool], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.01)


def is_idle(server: Server) -> bool:
    about = server.about()
    return (about["busy"], about["waiting"]) == (0, 0)


# -- OpenAI's client ----------------------------------------------------------------------------------------


def test_it_lists_the_model(server: Server) -> None:
    models = server.client.models.list().data
    assert [(each.id, each.object, each.owned_by) for each in models] == [("tiny", "model", "shoal")]
    assert server.client.models.retrieve("tiny").id == "tiny"
    assert models[0].shoal["context"] == CONTEXT


def test_it_completes_with_and_without_a_stream(server: Server) -> None:
    asked: dict[str, Any] = {"model": "tiny", "prompt": "Once", "max_tokens": 24, "seed": 5, "extra_body": ENDLESS}
    whole = server.client.completions.create(**asked)
    assert (whole.choices[0].finish_reason, whole.usage.completion_tokens, whole.usage.prompt_tokens) == (
        "length",
        24,
        4,
    )
    parts = list(server.client.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    assert "".join(each.choices[0].text for each in parts if each.choices) == whole.choices[0].text
    assert parts[-1].usage.total_tokens == 28
    assert [each.choices[0].finish_reason for each in parts if each.choices][-1] == "length"
    assert whole.system_fingerprint == parts[0].system_fingerprint
    other = server.client.completions.create(**asked | {"seed": 6})
    assert other.choices[0].text != whole.choices[0].text


def test_it_chats_with_and_without_a_stream(server: Server) -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
    ]
    asked = {"model": "tiny", "messages": messages, "max_completion_tokens": 16, "seed": 2, "extra_body": ENDLESS}
    whole = server.client.chat.completions.create(**asked)
    message = whole.choices[0].message
    assert (message.role, whole.usage.completion_tokens) == ("assistant", 16)
    assert whole.usage.prompt_tokens == len("system: Be brief.\nuser: Hi\nassistant:")
    parts = list(server.client.chat.completions.create(**asked, stream=True))
    assert parts[0].choices[0].delta.role == "assistant"
    assert "".join(each.choices[0].delta.content or "" for each in parts) == message.content


def test_the_example_asks(server: Server) -> None:
    command = [sys.executable, str(Path(__file__).parents[2] / "examples/ask.py"), "Once"]
    environ = os.environ | {"OPENAI_BASE_URL": server.url, "PYTHONIOENCODING": "utf-8"}
    done = subprocess.run(command, capture_output=True, timeout=120, env=environ)
    expected = server.client.completions.create(model="tiny", prompt="Once", max_tokens=60, seed=1)
    assert done.returncode == 0, done.stderr
    assert done.stdout.decode() == expected.choices[0].text + "\n"


def test_choices_stops_and_probabilities(server: Server) -> None:
    asked: dict[str, Any] = {
        "model": "tiny",
        "prompt": ["ab", "cd"],
        "max_tokens": 12,
        "seed": 1,
        "extra_body": ENDLESS,
    }
    several = server.client.completions.create(**asked, n=2)
    assert [each.index for each in several.choices] == [0, 1, 2, 3]
    assert (several.usage.prompt_tokens, several.usage.completion_tokens) == (4, 48)
    single = server.client.completions.create(**asked | {"prompt": [97, 98]})
    assert single.choices[0].text == several.choices[0].text
    text = server.client.completions.create(**asked | {"prompt": "ab", "max_tokens": 200}).choices[0].text
    stop = next(text[place : place + 2] for place in range(30, 190) if text[place : place + 2].isascii())
    stopped = server.client.completions.create(**asked | {"prompt": "ab", "max_tokens": 200}, stop=["zzzzz", stop])
    assert (stopped.choices[0].text, stopped.choices[0].finish_reason) == (text.partition(stop)[0], "stop")
    told = server.client.completions.create(**asked | {"prompt": "ab"}, logprobs=2).choices[0].logprobs
    assert len(told.tokens) == len(told.token_logprobs) == 12
    assert all(
        max(top.values()) >= logprob - 1e-6 or len(top) == 2
        for top, logprob in zip(told.top_logprobs, told.token_logprobs, strict=True)
    )
    chat = server.client.chat.completions.create(
        model="tiny",
        messages=[{"role": "user", "content": "x"}],
        max_tokens=3,
        temperature=0,
        logprobs=True,
        top_logprobs=1,
    )
    assert all(each.logprob == each.top_logprobs[0].logprob for each in chat.choices[0].logprobs.content)


WRONG: list[tuple[dict[str, Any], int, str, str | None]] = [
    ({"model": "other"}, 404, "model_not_found", "model"),
    ({"prompt": ""}, 400, "'prompt' is empty", "prompt"),
    ({"prompt": []}, 400, "'prompt' is empty", "prompt"),
    ({"prompt": "x" * CONTEXT}, 400, f"context is {CONTEXT:,} tokens", "prompt"),
    ({"prompt": "x" * 4000, "max_tokens": 200}, 400, "context_length_exceeded", "max_tokens"),
    ({"prompt": [5, 300]}, 400, "the token 300", "prompt[1]"),
    ({"temperature": 3}, 400, "less than or equal to 2", "temperature"),
    ({"temperature": "1"}, 400, "valid number", "temperature"),
    ({"n": 0}, 400, "greater than or equal to 1", "n"),
    ({"max_tokens": 1.5}, 400, "integer", "max_tokens"),
    ({"stop": ["a", "b", "c", "d", "e"]}, 400, "at most 4", "stop"),
    ({"logit_bias": {"50": 100}}, 400, "unsupported_parameter", "logit_bias"),
    ({"presence_penalty": 0.5}, 400, "unsupported_parameter", "presence_penalty"),
    ({"echo": True}, 400, "unsupported_parameter", "echo"),
    ({"best_of": 3}, 400, "unsupported_parameter", "best_of"),
    ({"repetition_penalty": 1.2}, 400, "unsupported_parameter", "repetition_penalty"),
]


@pytest.mark.parametrize(("change", "status", "words", "param"), WRONG, ids=lambda each: str(each)[:40])
def test_what_is_wrong_is_said_in_openais_shape(
    server: Server, change: dict[str, Any], status: int, words: str, param: str | None
) -> None:
    body = {"model": "tiny", "prompt": "ab", "max_tokens": 4} | change
    found, answer, _ = server.post("completions", json.dumps(body).encode())
    assert found == status
    assert set(answer["error"]) == {"message", "type", "param", "code"}
    assert words in json.dumps(answer)
    assert answer["error"]["param"] == param


def test_what_changes_nothing_is_taken(server: Server) -> None:
    body = {
        "model": "tiny",
        "prompt": "ab",
        "user": "me",
        "presence_penalty": 0,
        "best_of": 1,
        "suffix": None,
        "n": None,
    }
    assert server.post("completions", json.dumps(body).encode())[0] == 200


@pytest.mark.parametrize(
    ("path", "body", "kind", "status"),
    [
        ("completions", b"{", "application/json", 400),
        ("completions", b"[" * 100_000, "application/json", 400),
        ("completions", b"[]", "application/json", 400),
        ("completions", b'{"model": "tiny", "prompt": "a"}', "text/plain", 400),
        ("completions", b'{"prompt": "a"}', "application/json", 400),
        ("completions", b" " * (5 << 20), "application/json", 413),
        ("chat/completions", b'{"model": "tiny", "messages": []}', "application/json", 400),
        (
            "chat/completions",
            b'{"model": "tiny", "messages": [{"role": "tool", "content": "x"}]}',
            "application/json",
            400,
        ),
        ("embeddings", b"{}", "application/json", 404),
        ("models", b"{}", "application/json", 405),
    ],
)
def test_other_mistakes(server: Server, path: str, body: bytes, kind: str, status: int) -> None:
    found, answer, _ = server.post(path, body, kind)
    assert found == status
    assert set(answer["error"]) == {"message", "type", "param", "code"}


def test_openais_client_raises_its_own_errors(server: Server) -> None:
    with pytest.raises(openai.NotFoundError, match="there is 'tiny'"):
        server.client.completions.create(model="gpt-9", prompt="a")
    with pytest.raises(openai.BadRequestError, match="tools"):
        server.client.chat.completions.create(
            model="tiny",
            messages=[{"role": "user", "content": "x"}],
            tools=[{"type": "function", "function": {"name": "f"}}],
        )


def test_a_foreign_name_is_refused(server: Server) -> None:
    request = urllib.request.Request(f"{server.url}/models", headers={"Host": "evil.example"})
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(request, timeout=30)


# -- many, and rude -----------------------------------------------------------------------------------------


def test_32_streams_at_once_all_come_to_their_length(server: Server) -> None:
    def read(number: int) -> tuple[int, str]:
        length = 40 + 3 * number
        parts = server.client.completions.create(
            model="tiny", prompt="x" * (1 + 9 * number), max_tokens=length, seed=number, stream=True,
            stream_options={"include_usage": True}, extra_body=ENDLESS,
        )  # fmt: skip
        *_, last, usage = parts
        return usage.usage.completion_tokens - length, last.choices[0].finish_reason

    with ThreadPoolExecutor(32) as pool:
        assert set(pool.map(read, range(32))) == {(0, "length")}
    until(lambda: is_idle(server))


def asking(server: Server, tokens: int, **more: Any) -> socket.socket:
    """A client that has asked for a text, and reads nothing of it yet."""
    client = socket.create_connection(server.address)
    body = json.dumps({"model": "tiny", "prompt": "x", "max_tokens": tokens, **ENDLESS, **more}).encode()
    head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    client.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    return client


def test_who_hangs_up_leaves_nothing_behind(server: Server) -> None:
    before = server.about()
    for wait in (True, False):
        clients = [asking(server, 4000, stream=True) for _ in range(20)]
        until(lambda: server.about()["busy"] == 20)
        for client in clients:
            if wait:
                assert client.recv(1000).startswith(b"HTTP/1.1 200")
            client.close()
        until(lambda: is_idle(server))
    whole = asking(server, 4000)
    until(lambda: server.about()["busy"] == 1)
    whole.close()
    until(lambda: is_idle(server))
    assert server.about() == before


def test_a_crowd_is_told_when_to_come_again(server: Server) -> None:
    clients = [asking(server, 4000, stream=True) for _ in range(72)]
    try:
        until(lambda: (lambda about: about["busy"] + about["waiting"])(server.about()) == 72)
        status, answer, headers = server.post("completions", b'{"model": "tiny", "prompt": "x"}')
        assert (status, answer["error"]["type"]) == (429, "rate_limit_error")
        assert 1 <= int(headers["Retry-After"]) <= 60
        with pytest.raises(openai.RateLimitError):
            server.client.completions.create(model="tiny", prompt="x")
    finally:
        for client in clients:
            client.close()
    until(lambda: is_idle(server))
    assert server.post("completions", b'{"model": "tiny", "prompt": "x"}')[0] == 200


def test_a_key_is_asked_for_and_a_stop_cuts_streams_short(checkpoint: Path) -> None:
    process, server = start(checkpoint, "--api-key", "secret", "--name", "mine")
    try:
        with pytest.raises(openai.AuthenticationError):
            server.client.models.list()
        client = openai.OpenAI(base_url=server.url, api_key="secret", max_retries=0, timeout=60)
        assert client.models.list().data[0].id == "mine"
        stream = client.completions.create(model="mine", prompt="x", max_tokens=4000, stream=True, extra_body=ENDLESS)
        next(iter(stream))
        process.send_signal(signal.SIGTERM)
        with pytest.raises(openai.APIError, match="stopping"):
            list(stream)
    finally:
        assert end(process) == 0


def test_a_metrics_line_says_what_was_done(server: Server) -> None:
    server.client.completions.create(model="tiny", prompt="x", max_tokens=3, extra_body=ENDLESS)
    with urllib.request.urlopen(server.url.removesuffix("/v1") + "/metrics", timeout=30) as answer:
        lines = answer.read().decode()
    assert "shoal_serve_slots_busy 0.0" in lines
    written = re.search(r"shoal_serve_tokens_total (\d\S*)", lines)
    assert written is not None
    assert float(written[1]) >= 3
    assert re.search(r'shoal_serve_requests_total\{route="/v1/completions",status="200"\} [1-9]', lines)
    assert re.search(r'shoal_serve_request_seconds_bucket\{le="\+Inf",route="/v1/completions"\} [1-9]', lines)
