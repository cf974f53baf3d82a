"""OpenAI's answers to both kinds of requests for text: in one piece, or as a stream of server-sent events.

`AnswerFormat` builds the JSON, and is pure; `answer` and `stream` have the engine write a request's texts, and respond.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from shoal.node.inference.engine.engine import Engine, Ticket
from shoal.node.inference.engine.sequence import Delta, TokenLogprobs
from shoal.node.inference.http.errors import api_error
from shoal.node.inference.http.requests import Plan
from shoal.protocol.base.errors import ShoalError

Table = dict[str, Any]
LOST = "X-Shoal-Experts-Lost"
STALL = 20.0  # seconds for which a client may read nothing of a stream
EVENTS = {"Content-Type": "text/event-stream; charset=utf-8", "X-Accel-Buffering": "no"}
DONE = b"data: [DONE]\n\n"

log = logging.getLogger("shoal.serve")


@dataclass(slots=True)
class Choice:
    """One choice of an answer, as far as it is written."""

    text: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    tokens: int = 0
    finish: str | None = None
    version: str = ""  # of the weights that write it; known with the first token, as it may wait long for its slot
    notes: Mapping[str, Any] = field(default_factory=dict)

    def add(self, delta: Delta) -> None:
        """Take in the next part."""
        self.text.append(delta.text)
        self.logprobs += delta.logprobs
        self.note(delta)
        self.notes = delta.notes

    def note(self, delta: Delta) -> None:
        """Take in the next part except its text, which is streamed."""
        self.tokens, self.finish, self.version = delta.tokens, delta.finish, delta.version


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """Builds the JSON of the answer to one request; all chunks of a stream have its id."""

    id: str
    created: int
    model: str
    is_chat: bool
    has_logprobs: bool

    def whole(self, choices: Sequence[Choice], prompt_tokens: int) -> Table:
        """The answer in one piece."""
        rows = []
        for index, choice in enumerate(choices):
            text = "".join(choice.text)
            said: Table = {"message": {"role": "assistant", "content": text, "refusal": None}} if self.is_chat else {}
            row = said or {"text": text}
            ending = {"finish_reason": choice.finish, **_noted(choice.notes)}
            rows.append({"index": index, **row, "logprobs": self._logprobs(choice.logprobs), **ending})
        return self._table("chat.completion", choices[0].version, rows) | {"usage": usage(choices, prompt_tokens)}

    def opening(self, index: int, delta: Delta) -> list[Table]:
        """The chunks before the first part, `delta`, of a choice."""
        if not self.is_chat:
            return []
        first = {"role": "assistant", "content": ""}
        return [self._part(delta, {"index": index, "delta": first, "finish_reason": None})]

    def part(self, index: int, delta: Delta) -> Table:
        """The chunk for one part."""
        said = {"content": delta.text} if delta.text or delta.logprobs else {}
        row: Table = {"index": index, **({"delta": said} if self.is_chat else {"text": delta.text})}
        ending = {"finish_reason": delta.finish, **_noted(delta.notes)}
        return self._part(delta, row | {"logprobs": self._logprobs(delta.logprobs), **ending})

    def closing(self, choices: Sequence[Choice], prompt_tokens: int) -> Table:
        """The chunk with the usage at the end of a stream."""
        return self._table("chat.completion.chunk", choices[0].version) | {"usage": usage(choices, prompt_tokens)}

    def _part(self, delta: Delta, row: Table) -> Table:
        return self._table("chat.completion.chunk", delta.version, [row])

    def _table(self, chat: str, version: str, rows: Sequence[Table] = ()) -> Table:
        kind = chat if self.is_chat else "text_completion"
        head = {"id": self.id, "object": kind, "created": self.created, "model": self.model}
        return {**head, "system_fingerprint": version, "choices": list(rows)}

    def _logprobs(self, tokens: Sequence[TokenLogprobs]) -> Table | None:
        if not self.has_logprobs:
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
    """The numbers of tokens that were read and written."""
    written = sum(choice.tokens for choice in choices)
    return {"prompt_tokens": prompt_tokens, "completion_tokens": written, "total_tokens": prompt_tokens + written}


def headers(choices: Sequence[Choice]) -> dict[str, str]:
    """The header that names experts that were lost on the way, if any."""
    lost = sorted({name for choice in choices for name in choice.notes.get("lost", ())})
    return {LOST: ", ".join(lost)} if lost else {}


def _noted(notes: Mapping[str, Any]) -> Table:
    """Shoal's own facts on a choice, under a key that OpenAI's clients pass through."""
    return {"shoal": dict(notes)} if notes else {}


def _chat_logprob(token: TokenLogprobs) -> Table:
    top = [_logprob(text, logprob) for text, logprob in token.top]
    return _logprob(token.text, token.logprob) | {"top_logprobs": top}


def _logprob(text: str, logprob: float) -> Table:
    return {"token": text, "logprob": logprob, "bytes": list(text.encode("utf-8", "replace"))}


async def answer(engine: Engine, plan: Plan, shape: AnswerFormat) -> web.Response:
    """Respond in one piece. If the client hangs up this is cancelled, which frees the slots."""
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
    engine: Engine, plan: Plan, shape: AnswerFormat, request: web.Request, *, has_usage: bool, stall: float
) -> web.StreamResponse:
    """Respond with a stream. A client that reads nothing for `stall` seconds is disconnected."""
    ticket = engine.submit(plan.jobs)
    try:
        response = web.StreamResponse(headers=EVENTS)
        await response.prepare(request)
        with suppress(ConnectionError):  # the client is gone
            async for data in _events(ticket, plan, shape, has_usage):
                await _write(request, response, data, stall)
            await response.write_eof()
        return response
    finally:
        ticket.cancel()


async def _write(request: web.Request, response: web.StreamResponse, data: bytes, stall: float) -> None:
    """ConnectionError if the client is gone, or has read nothing for `stall` seconds."""
    try:
        async with asyncio.timeout(stall):
            await response.write(data)
    except TimeoutError as error:
        log.info("a client has taken nothing of its stream for %g s: it is cut off", stall)
        if request.transport is not None:
            request.transport.abort()
        raise ConnectionResetError("the client does not read") from error


async def _events(ticket: Ticket, plan: Plan, shape: AnswerFormat, has_usage: bool) -> AsyncIterator[bytes]:
    """The server-sent events of a stream; an error that ends a text ends the stream with its event."""
    choices = [Choice() for _ in plan.jobs]
    try:
        async for came in ticket.deltas():
            chunks: list[Table] = []
            for place, delta in came:
                if not choices[place].version:
                    chunks += shape.opening(place, delta)
                choices[place].note(delta)
                if delta.text or delta.logprobs or delta.finish:
                    chunks.append(shape.part(place, delta))
            yield b"".join(map(event, chunks))
    except ShoalError as error:
        yield event(api_error(error).body)
        return
    if has_usage:
        yield event(shape.closing(choices, plan.prompt_tokens))
    yield DONE


def event(table: Table) -> bytes:
    """A table as a server-sent event."""
    return b"data: " + json.dumps(table, separators=(",", ":")).encode() + b"\n\n"
