"""A conversation as the text that a model goes on from.

A tokenizer may bring a template: data of the files that were named to us, which transformers renders in a sandbox.
Without one the format is plain, a line for each message, and the answer ends where the next message would begin:

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

# What is looked for in renderings. Of digits: no filter alters them, and no template has these of its own.
QUESTION, ANSWER, NEXT = "2718281828459045235", "3141592653589793238", "1414213562373095048"
ASKED: tuple[Message, ...] = ({"role": "user", "content": QUESTION},)
ANSWERED: tuple[Message, ...] = (*ASKED, {"role": "assistant", "content": ANSWER})
GOES_ON: tuple[Message, ...] = (*ANSWERED, {"role": "user", "content": NEXT})
SYSTEM: tuple[Message, ...] = ({"role": "system", "content": "1"},)  # without which some templates refuse


class Template(NamedTuple):
    """Of conversations, in Jinja, and the file that it is from."""

    text: str
    where: str


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

    def __init__(
        self, tokens: Any, template: Template, special: Mapping[str, str], begins: frozenset[int] = frozenset()
    ) -> None:
        """`tokens` is of the library tokenizers, `special` are the tokens that a template may name (bos_token ...).

        `begins` are tokens that begin a text, too. LocalError if it is no template, or leaves out what is said.
        """
        self._tokens, self._begins = tokens, begins | {tokens.token_to_id(special.get("bos_token", ""))}
        self._tokenizer: Any = extra.transformers().PreTrainedTokenizerFast(
            tokenizer_object=tokens, chat_template=template.text, **special
        )
        self._has_parts = False  # whether a message's content is a list of parts, for templates that know no other
        self._check(template)
        answers = self._behind_answers()
        self.end_of_turn = next((end for end in map(self._first_special, answers) if end is not None), None)
        self._stop = "" if self.end_of_turn is not None else _stop(answers)

    @property
    def stops(self) -> tuple[str, ...]:
        """See ChatFormat; of a template that puts no special token behind an answer, what it writes there instead."""
        return (self._stop,) if self._stop else ()

    def prompt(self, messages: Sequence[Message]) -> str:
        """See ChatFormat."""
        try:
            return self._rendered(messages, is_asked=True)
        except Exception as error:  # whatever a template raises, often on purpose: roles that must alternate
            raise LocalError(f"the model's chat template refuses these messages: {error}") from error

    def _behind_answers(self) -> list[str]:
        """What the template writes behind an answer: the likeliest end of a turn first.

        Behind the last one, and up to a question that follows; first up to that, if a template always asks for another.
        """
        always_asks = self._tried(ASKED, is_asked=True) == self._tried(ASKED)
        behind: list[str] = []
        for messages in (GOES_ON, ANSWERED) if always_asks else (ANSWERED, GOES_ON):
            for text in self._tried(messages):
                _, is_there, after = text.rpartition(ANSWER)
                behind += [after.partition(NEXT)[0]] if is_there else []
        return behind

    def _check(self, template: Template) -> None:
        """See __init__; chooses how a message's content is given."""
        try:
            self._rendered(ASKED, is_asked=True)
        except ImportError as error:
            raise LocalError(f"{template.where} cannot be used: {error}") from error
        except Exception as error:
            if isinstance(line := getattr(error, "lineno", None), int):  # of Jinja's own, as it reads the template
                raise LocalError(f"{template.where} is no template for conversations: line {line}: {error}") from error
        plain = self._tried(ASKED, is_asked=True)
        if not plain or any(QUESTION in text for text in plain):
            return  # refusals are said to whoever sends such messages
        self._has_parts = True
        if not any(QUESTION in text for text in self._tried(ASKED, is_asked=True)):
            raise LocalError(f"{template.where} is no template for conversations: it leaves out what the user says")

    def _first_special(self, text: str) -> int | None:
        """The first special token, or the very first if that is added at all; never the one that begins a text."""
        known: Mapping[int, Any] = self._tokens.get_added_tokens_decoder()
        for place, token in enumerate(self._tokens.encode(text.lstrip(), add_special_tokens=False).ids):
            found = known.get(token)
            if found is not None and token not in self._begins and (found.special or place == 0):
                return int(token)
        return None

    def _tried(self, messages: Sequence[Message], *, is_asked: bool = False) -> list[str]:
        """The messages as rendered, and behind a system message; without what the template refuses."""
        texts: list[str] = []
        for before in ((), SYSTEM):
            with suppress(Exception):  # as in prompt
                texts.append(self._rendered((*before, *messages), is_asked=is_asked))
        return texts

    def _rendered(self, messages: Sequence[Message], *, is_asked: bool) -> str:
        text: str = self._tokenizer.apply_chat_template(
            [self._written(each) for each in messages], tokenize=False, add_generation_prompt=is_asked
        )
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")  # Jinja joins no halves

    def _written(self, message: Message) -> dict[str, Any]:
        content = message["content"]
        return {**message, "content": [{"type": "text", "text": content}] if self._has_parts else content}


def _stop(behind: Sequence[str]) -> str:
    """The text that ends a turn, of what is behind answers: what is there whatever follows, else the likeliest."""
    texts = [re.sub(r"^\s+(?=\s)", "", each.rstrip()) for each in behind if each.strip()]
    always = (each for each in texts if all(other.startswith(each) for other in texts))
    return next(always, texts[0] if texts else "")
