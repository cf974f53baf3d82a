"""OpenAI's answers, whole and in parts, for both kinds of requests. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from shoal.node.serve.sequence import Delta, TokenFacts

Table = dict[str, Any]


@dataclass(slots=True)
class Choice:
    """What has come of one choice so far."""

    text: list[str] = field(default_factory=list)
    facts: list[TokenFacts] = field(default_factory=list)
    tokens: int = 0
    finish: str | None = None

    def add(self, delta: Delta) -> None:
        """The next part."""
        self.text.append(delta.text)
        self.facts += delta.facts
        self.tokens, self.finish = delta.tokens, delta.finish


@dataclass(frozen=True, slots=True)
class Shape:
    """The answers to one request, which all have its id."""

    id: str
    created: int
    model: str
    fingerprint: str
    is_chat: bool
    tells_logprobs: bool

    def whole(self, choices: Sequence[Choice], prompt_tokens: int) -> Table:
        """The answer in one."""
        rows = []
        for index, choice in enumerate(choices):
            text = "".join(choice.text)
            said: Table = {"message": {"role": "assistant", "content": text, "refusal": None}} if self.is_chat else {}
            row = said or {"text": text}
            rows.append(
                {"index": index, **row, "logprobs": self._logprobs(choice.facts), "finish_reason": choice.finish}
            )
        return self._table("chat.completion", rows) | {"usage": usage(choices, prompt_tokens)}

    def opening(self, choices: int) -> list[Table]:
        """What a stream begins with."""
        if not self.is_chat:
            return []
        first = {"role": "assistant", "content": ""}
        return [self._part({"index": index, "delta": first, "finish_reason": None}) for index in range(choices)]

    def part(self, index: int, delta: Delta) -> Table:
        """One part of a stream."""
        said = {"content": delta.text} if delta.text or delta.facts else {}
        row: Table = {"index": index, **({"delta": said} if self.is_chat else {"text": delta.text})}
        return self._part(row | {"logprobs": self._logprobs(delta.facts), "finish_reason": delta.finish})

    def closing(self, choices: Sequence[Choice], prompt_tokens: int) -> Table:
        """What a stream ends with whose usage is told."""
        return self._table("chat.completion.chunk") | {"usage": usage(choices, prompt_tokens)}

    def _part(self, row: Table) -> Table:
        return self._table("chat.completion.chunk", [row])

    def _table(self, chat: str, rows: Sequence[Table] = ()) -> Table:
        kind = chat if self.is_chat else "text_completion"
        head = {"id": self.id, "object": kind, "created": self.created, "model": self.model}
        return {**head, "system_fingerprint": self.fingerprint, "choices": list(rows)}

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


def _chat_fact(facts: TokenFacts) -> Table:
    top = [_fact(text, logprob) for text, logprob in facts.top]
    return _fact(facts.text, facts.logprob) | {"top_logprobs": top}


def _fact(text: str, logprob: float) -> Table:
    return {"token": text, "logprob": logprob, "bytes": list(text.encode("utf-8", "replace"))}
