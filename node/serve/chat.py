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

    stops = ()

    def __init__(self, tokens: Any, template: str, special: Mapping[str, str]) -> None:
        """`tokens` is of the library tokenizers, `special` are the tokens that a template may name (bos_token ...)."""
        self._tokenizer: Any = extra.transformers().PreTrainedTokenizerFast(
            tokenizer_object=tokens, chat_template=template, **special
        )

    def prompt(self, messages: Sequence[Message]) -> str:
        """See ChatFormat."""
        try:
            return str(
                self._tokenizer.apply_chat_template(
                    [dict(each) for each in messages], tokenize=False, add_generation_prompt=True
                )
            )
        except Exception as error:  # whatever a template raises, often on purpose: roles that must alternate
            raise LocalError(f"the model's chat template refuses these messages: {error}") from error
