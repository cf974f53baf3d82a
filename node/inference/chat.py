"""Formats a conversation as the prompt from which a model writes the next answer.

A tokenizer may come with a Jinja template, which transformers renders in a sandbox. Without one the format is plain, a
line for each message, and the answer ends where the next message would begin:

    system: You are brief.
    user: Which sea is the deepest?
    assistant:
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

from shoal.node.base import extra
from shoal.protocol.base.errors import LocalError

Message = Mapping[str, str]  # role and content

# Markers that are searched for in rendered texts. They are digits: no filter alters them, and no template has them.
QUESTION, ANSWER, NEXT = "2718281828459045235", "3141592653589793238", "1414213562373095048"
ASKED: tuple[Message, ...] = ({"role": "user", "content": QUESTION},)
ANSWERED: tuple[Message, ...] = (*ASKED, {"role": "assistant", "content": ANSWER})
GOES_ON: tuple[Message, ...] = (*ANSWERED, {"role": "user", "content": NEXT})
SYSTEM: tuple[Message, ...] = ({"role": "system", "content": "1"},)  # some templates require a system message


class Template(NamedTuple):
    """A chat template in Jinja, and the file that it is from."""

    text: str
    where: str


class ChatFormat(Protocol):
    """How conversations become prompts."""

    @property
    def stops(self) -> tuple[str, ...]:
        """Strings that end an answer, beside the tokens that end a text."""

    def prompt(self, messages: Sequence[Message]) -> str:
        """The conversation up to where the next answer begins; LocalError if the format refuses these messages."""


class PlainChat:
    """The plain format."""

    stops = ("\nuser:", "\nsystem:")

    def prompt(self, messages: Sequence[Message]) -> str:
        """See ChatFormat."""
        lines = [f"{each['role']}: {each['content']}" for each in messages]
        return "\n".join([*lines, "assistant:"])


class TemplateChat:
    """A tokenizer's own template, in Jinja."""

    def __init__(
        self, tokens: Any, template: Template, special: Mapping[str, str], begins: frozenset[int] = frozenset()
    ) -> None:
        """`tokens` is the library's Tokenizer, `special` the tokens that a template may name (bos_token ...).

        `begins` are further tokens that begin a text. LocalError if the template is invalid, or omits the messages.
        """
        self._tokens, self._begins = tokens, begins | {tokens.token_to_id(special.get("bos_token", ""))}
        self._tokenizer: Any = extra.transformers().PreTrainedTokenizerFast(
            tokenizer_object=tokens, chat_template=template.text, **special
        )
        self._has_parts = False  # whether the template needs a message's content as a list of parts
        self._check(template)
        endings = self._answer_endings()
        self.end_of_turn = next((end for end in map(self._first_special, endings) if end is not None), None)
        self._stop = "" if self.end_of_turn is not None else _stop(endings)

    @property
    def stops(self) -> tuple[str, ...]:
        """See ChatFormat: what the template writes after an answer, if that is not a special token."""
        return (self._stop,) if self._stop else ()

    def prompt(self, messages: Sequence[Message]) -> str:
        """See ChatFormat."""
        try:
            return self._rendered(messages, is_asked=True)
        except Exception as error:  # of any type, often on purpose: such as for roles that do not alternate
            raise LocalError(
                f"the model's chat template refuses these messages: {error}", code="prompt-wrong"
            ) from error

    def _answer_endings(self) -> list[str]:
        """What the template writes after an answer, the likeliest end of a turn first.

        That is the text after the last answer, and the text between an answer and the next question. The latter comes
        first if the template always asks for another answer.
        """
        always_asks = self._tried(ASKED, is_asked=True) == self._tried(ASKED)
        endings: list[str] = []
        for messages in (GOES_ON, ANSWERED) if always_asks else (ANSWERED, GOES_ON):
            for text in self._tried(messages):
                _, is_there, after = text.rpartition(ANSWER)
                endings += [after.partition(NEXT)[0]] if is_there else []
        return endings

    def _check(self, template: Template) -> None:
        """Check the template, see __init__, and find out how it needs a message's content."""
        try:
            self._rendered(ASKED, is_asked=True)
        except ImportError as error:
            raise LocalError(f"{template.where} cannot be used: {error}", code="template-wrong") from error
        except Exception as error:
            if isinstance(line := getattr(error, "lineno", None), int):  # a syntax error of Jinja
                raise LocalError(
                    f"{template.where} is no template for conversations: line {line}: {error}", code="template-wrong"
                ) from error
        plain = self._tried(ASKED, is_asked=True)
        if not plain or any(QUESTION in text for text in plain):
            return  # a template that refuses these messages may accept others: clients are told when it refuses theirs
        self._has_parts = True
        if not any(QUESTION in text for text in self._tried(ASKED, is_asked=True)):
            raise LocalError(
                f"{template.where} is no template for conversations: it leaves out what the user says",
                code="template-wrong",
            )

    def _first_special(self, text: str) -> int | None:
        """The first special token, or an added token at the very beginning; never a token that begins a text."""
        known: Mapping[int, Any] = self._tokens.get_added_tokens_decoder()
        for place, token in enumerate(self._tokens.encode(text.lstrip(), add_special_tokens=False).ids):
            found = known.get(token)
            if found is not None and token not in self._begins and (found.special or place == 0):
                return int(token)
        return None

    def _tried(self, messages: Sequence[Message], *, is_asked: bool = False) -> list[str]:
        """The messages rendered alone, and after a system message; without those that the template refuses."""
        texts: list[str] = []
        for before in ((), SYSTEM):
            with suppress(Exception):  # a template may raise anything
                texts.append(self._rendered((*before, *messages), is_asked=is_asked))
        return texts

    def _rendered(self, messages: Sequence[Message], *, is_asked: bool) -> str:
        text: str = self._tokenizer.apply_chat_template(
            [self._written(each) for each in messages], tokenize=False, add_generation_prompt=is_asked
        )
        pairs = text.encode("utf-16-le", "surrogatepass")  # Jinja does not join surrogate pairs
        return pairs.decode("utf-16-le", "replace")

    def _written(self, message: Message) -> dict[str, Any]:
        content = message["content"]
        return {**message, "content": [{"type": "text", "text": content}] if self._has_parts else content}


def _stop(endings: Sequence[str]) -> str:
    """The stop string, by what follows answers: one that begins all of these endings, otherwise the likeliest."""
    texts = [re.sub(r"^\s+(?=\s)", "", each.rstrip()) for each in endings if each.strip()]
    always = (each for each in texts if all(other.startswith(each) for other in texts))
    return next(always, texts[0] if texts else "")
