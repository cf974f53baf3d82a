"""A conversation as the text that a model goes on from.

A tokenizer may bring a template: data of the files that were named to us, which transformers renders in a sandbox.
Without one the format is plain, a line for each message, and the answer ends where the next message would begin:

    system: You are brief.
    user: Which sea is the deepest?
    assistant:
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from shoal.node.models import extra
from shoal.protocol.errors import LocalError

Message = Mapping[str, str]  # role and content
TURN: Sequence[Message] = ({"role": "user", "content": "question"}, {"role": "assistant", "content": "answer"})


class ChatFormat(Protocol):
    """See above."""

    @property
    def stops(self) -> tuple[str, ...]:
        """Strings that end an answer, beside the token that ends a text."""
        ...

    def prompt(self, messages: Sequence[Message]) -> str:
        """Up to where the assistant's answer begins; LocalError if the format has no place for these messages."""
        ...


class PlainChat:
    """The plain format."""

    stops = ("\nuser:", "\nsystem:")

    def prompt(self, messages: Sequence[Message]) -> str:
        """See ChatFormat."""
        lines = [f"{each['role']}: {each['content']}" for each in messages]
        return "\n".join([*lines, "assistant:"])


class TemplateChat:
    """A tokenizer's own template, in Jinja."""

    stops: tuple[str, ...] = ()

    def __init__(self, tokens: Any, template: str, special: Mapping[str, str]) -> None:
        """`tokens` is of the library tokenizers, `special` are the tokens that a template may name (bos_token ...)."""
        self._tokens = tokens
        self._tokenizer: Any = extra.transformers().PreTrainedTokenizerFast(
            tokenizer_object=tokens, chat_template=template, **special
        )

    def prompt(self, messages: Sequence[Message]) -> str:
        """See ChatFormat."""
        try:
            return self._rendered(messages, is_asked=True)
        except Exception as error:  # whatever a template raises, often on purpose: roles that must alternate
            raise LocalError(f"the model's chat template refuses these messages: {error}") from error

    def end_of_turn(self) -> int | None:
        """The special token that the template puts after an answer; None if it puts none, or refuses to be asked."""
        try:
            text = self._rendered(TURN, is_asked=False)
        except Exception:  # as above; it will be said to whoever sends such messages
            return None
        after = text.rpartition(TURN[-1]["content"])[2].lstrip()
        known: Mapping[int, Any] = self._tokens.get_added_tokens_decoder()
        after_it = {len(token.content): number for number, token in known.items() if _opens(after, token.content)}
        return after_it[max(after_it)] if after_it else None

    def _rendered(self, messages: Sequence[Message], *, is_asked: bool) -> str:
        return str(
            self._tokenizer.apply_chat_template(
                [dict(each) for each in messages], tokenize=False, add_generation_prompt=is_asked
            )
        )


def _opens(text: str, token: str) -> bool:
    return bool(token) and text.startswith(token)
