"""OpenAI's answers, whole and in parts, for both kinds of requests. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from shoal.node.serve.sequence import Delta, TokenFacts

Table = dict[str, Any]
LOST = "X-Shoal-Experts-Lost"


@dataclass(slots=True)
class Choice:
    """What has come of one choice so far."""

    text: list[str] = field(default_factory=list)
    facts: list[TokenFacts] = field(default_factory=list)
    tokens: int = 0
    finish: str | None = None
    version: str = ""  # of the weights that write it
    notes: Mapping[str, Any] = field(default_factory=dict)

    def add(self, delta: Delta) -> None:
        """The next part."""
        self.text.append(delta.text)
        self.facts += delta.facts
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
            rows.append({"index": index, **row, "logprobs": self._logprobs(choice.facts), **ending})
        return self._table("chat.completion", choices[0].version, rows) | {"usage": usage(choices, prompt_tokens)}

    def opening(self, index: int, delta: Delta) -> list[Table]:
        """What goes before a choice's first part, which `delta` is."""
        if not self.is_chat:
            return []
        first = {"role": "assistant", "content": ""}
        return [self._part(delta, {"index": index, "delta": first, "finish_reason": None})]

    def part(self, index: int, delta: Delta) -> Table:
        """One part of a stream."""
        said = {"content": delta.text} if delta.text or delta.facts else {}
        row: Table = {"index": index, **({"delta": said} if self.is_chat else {"text": delta.text})}
        ending = {"finish_reason": delta.finish, **_noted(delta.notes)}
        return self._part(delta, row | {"logprobs": self._logprobs(delta.facts), **ending})

    def closing(self, choices: Sequence[Choice], prompt_tokens: int) -> Table:
        """What a stream ends with whose usage is told."""
        return self._table("chat.completion.chunk", choices[0].version) | {"usage": usage(choices, prompt_tokens)}

    def _part(self, delta: Delta, row: Table) -> Table:
        return self._table("chat.completion.chunk", delta.version, [row])

    def _table(self, chat: str, version: str, rows: Sequence[Table] = ()) -> Table:
        kind = chat if self.is_chat else "text_completion"
        head = {"id": self.id, "object": kind, "created": self.created, "model": self.model}
        return {**head, "system_fingerprint": version, "choices": list(rows)}

    def _logprobs(self, facts: Sequence[TokenFacts]) -> Table | None:
        if not self.tells_logprobs:
            return None
        if self.is_chat:
            return {"content": [_chat_fact(each) for each in facts], "refusal": None}
        return {
            "tokens": [each.text for each in facts],
            "token_logprobs": [each.logprob for each in facts],
            "top_logprobs": [dict(each.top) for each in facts],
            "text_offset": [each.start for each in facts],
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


def _chat_fact(facts: TokenFacts) -> Table:
    top = [_fact(text, logprob) for text, logprob in facts.top]
    return _fact(facts.text, facts.logprob) | {"top_logprobs": top}


def _fact(text: str, logprob: float) -> Table:
    return {"token": text, "logprob": logprob, "bytes": list(text.encode("utf-8", "replace"))}
