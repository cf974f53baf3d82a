"""OpenAI's answers, for both kinds of requests: in one piece, or as a stream of server-sent events.

`Shape` says what is written, and is pure; `answer` and `stream` take a request through the engine and back.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from shoal.node.inference.engine.engine import Engine, Ticket
from shoal.node.inference.engine.sequence import Delta, TokenLogprobs
from shoal.node.inference.http.faults import fault_of
from shoal.node.inference.http.requests import Plan
from shoal.protocol.base.errors import ShoalError

Table = dict[str, Any]
LOST = "X-Shoal-Experts-Lost"
STALL = 20.0  # seconds for which a client may take nothing of a stream
EVENTS = {"Content-Type": "text/event-stream; charset=utf-8", "X-Accel-Buffering": "no"}
DONE = b"data: [DONE]\n\n"

log = logging.getLogger("shoal.serve")


@dataclass(slots=True)
class Choice:
    """What has come of one choice so far."""

    text: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    tokens: int = 0
    finish: str | None = None
    version: str = ""  # of the weights that write it, known with the first token: it may wait for its slot for long
    notes: Mapping[str, Any] = field(default_factory=dict)

    def add(self, delta: Delta) -> None:
        """The next part."""
        self.text.append(delta.text)
        self.logprobs += delta.logprobs
        self.note(delta)
        self.notes = delta.notes

    def note(self, delta: Delta) -> None:
        """The next part, whose text goes out by itself."""
        self.tokens, self.finish, self.version = delta.tokens, delta.finish, delta.version


@dataclass(frozen=True, slots=True)
class Shape:
    """The answers to one request, which all have its id."""

    id: str
    created: int
    model: str
    is_chat: bool
    tells_logprobs: bool

    def whole(self, choices: Sequence[Choice], prompt_tokens: int) -> Table:
        """The answer in one."""
        rows = []
        for index, choice in enumerate(choices):
            text = "".join(choice.text)
            said: Table = {"message": {"role": "assistant", "content": text, "refusal": None}} if self.is_chat else {}
            row = said or {"text": text}
            ending = {"finish_reason": choice.finish, **_noted(choice.notes)}
            rows.append({"index": index, **row, "logprobs": self._logprobs(choice.logprobs), **ending})
        return self._table("chat.completion", choices[0].version, rows) | {"usage": usage(choices, prompt_tokens)}

    def opening(self, index: int, delta: Delta) -> list[Table]:
        """What goes before a choice's first part, which `delta` is."""
        if not self.is_chat:
            return []
        first = {"role": "assistant", "content": ""}
        return [self._part(delta, {"index": index, "delta": first, "finish_reason": None})]

    def part(self, index: int, delta: Delta) -> Table:
        """One part of a stream."""
        said = {"content": delta.text} if delta.text or delta.logprobs else {}
        row: Table = {"index": index, **({"delta": said} if self.is_chat else {"text": delta.text})}
        ending = {"finish_reason": delta.finish, **_noted(delta.notes)}
        return self._part(delta, row | {"logprobs": self._logprobs(delta.logprobs), **ending})

    def closing(self, choices: Sequence[Choice], prompt_tokens: int) -> Table:
        """What a stream ends with whose usage is told."""
        return self._table("chat.completion.chunk", choices[0].version) | {"usage": usage(choices, prompt_tokens)}

    def _part(self, delta: Delta, row: Table) -> Table:
        return self._table("chat.completion.chunk", delta.version, [row])

    def _table(self, chat: str, version: str, rows: Sequence[Table] = ()) -> Table:
        kind = chat if self.is_chat else "text_completion"
        head = {"id": self.id, "object": kind, "created": self.created, "model": self.model}
        return {**head, "system_fingerprint": version, "choices": list(rows)}

    def _logprobs(self, tokens: Sequence[TokenLogprobs]) -> Table | None:
        if not self.tells_logprobs:
            return None
        if self.is_chat:
            return {"content": [_chat_logprob(each) for each in tokens], "refusal": None}
        return {
            "tokens": [each.text for each in tokens],
            "token_logprobs": [each.logprob for each in tokens],
            "top_logprobs": [dict(each.top) for each in tokens],
            "text_offset": [each.start for each in tokens],
        }


def usage(choices: Sequence[Choice], prompt_tokens: int) -> Table:
    """How many tokens were read and written."""
    written = sum(choice.tokens for choice in choices)
    return {"prompt_tokens": prompt_tokens, "completion_tokens": written, "total_tokens": prompt_tokens + written}


def headers(choices: Sequence[Choice]) -> dict[str, str]:
    """What an answer says of its choices beside its body: experts that were lost on the way."""
    lost = sorted({name for choice in choices for name in choice.notes.get("lost", ())})
    return {LOST: ", ".join(lost)} if lost else {}


def _noted(notes: Mapping[str, Any]) -> Table:
    """What only we say of a choice: OpenAI's shape has no place for it, and its clients pass on what else there is."""
    return {"shoal": dict(notes)} if notes else {}


def _chat_logprob(token: TokenLogprobs) -> Table:
    top = [_logprob(text, logprob) for text, logprob in token.top]
    return _logprob(token.text, token.logprob) | {"top_logprobs": top}


def _logprob(text: str, logprob: float) -> Table:
    return {"token": text, "logprob": logprob, "bytes": list(text.encode("utf-8", "replace"))}


async def answer(engine: Engine, plan: Plan, shape: Shape) -> web.Response:
    """Everything at once. Whoever hangs up meanwhile has this cancelled, and the slots are free."""
    choices = [Choice() for _ in plan.jobs]
    ticket = engine.submit(plan.jobs)
    try:
        async for came in ticket.deltas():
            for place, delta in came:
                choices[place].add(delta)
    finally:
        ticket.cancel()
    return web.json_response(shape.whole(choices, plan.prompt_tokens), headers=headers(choices))


async def stream(
    engine: Engine, plan: Plan, shape: Shape, request: web.Request, *, tells_usage: bool, stall: float
) -> web.StreamResponse:
    """As it is made. A client that takes nothing for `stall` seconds is cut off."""
    ticket = engine.submit(plan.jobs)
    try:
        response = web.StreamResponse(headers=EVENTS)
        await response.prepare(request)
        with suppress(ConnectionError):  # the client is gone, and with it the reason to go on
            await _send(_Reader(request, response, stall), ticket, plan, shape, tells_usage)
            await response.write_eof()
        return response
    finally:
        ticket.cancel()


class _Reader:
    """The other end of a stream."""

    def __init__(self, request: web.Request, response: web.StreamResponse, stall: float) -> None:
        self._request, self._response, self._stall = request, response, stall

    async def take(self, data: bytes) -> None:
        """Write; ConnectionError if it is gone, or has taken nothing for too long."""
        try:
            async with asyncio.timeout(self._stall):
                await self._response.write(data)
        except TimeoutError as error:
            log.info("a client has taken nothing of its stream for %g s: it is cut off", self._stall)
            if self._request.transport is not None:
                self._request.transport.abort()
            raise ConnectionResetError("the client does not read") from error


async def _send(reader: _Reader, ticket: Ticket, plan: Plan, shape: Shape, tells_usage: bool) -> None:
    choices = [Choice() for _ in plan.jobs]
    try:
        async for came in ticket.deltas():
            events: list[Table] = []
            for place, delta in came:
                if not choices[place].version:
                    events += shape.opening(place, delta)
                choices[place].note(delta)
                if _says_any(delta):
                    events.append(shape.part(place, delta))
            await reader.take(b"".join(map(event, events)))
    except ShoalError as error:
        await reader.take(event(fault_of(error).body))
        return
    if tells_usage:
        await reader.take(event(shape.closing(choices, plan.prompt_tokens)))
    await reader.take(DONE)


def event(table: Table) -> bytes:
    """A server-sent event."""
    return b"data: " + json.dumps(table, separators=(",", ":")).encode() + b"\n\n"


def _says_any(delta: Delta) -> bool:
    """Whether it is worth an event."""
    return bool(delta.text or delta.logprobs or delta.finish)
