"""Which class a prompt asks for: the digits' names, as figures or in words."""

from __future__ import annotations

import re

WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
NAME = re.compile(rf"\b(?:(\d{{1,9}})|({'|'.join(WORDS)}))\b", re.IGNORECASE)


def class_of(prompt: str, classes: int) -> int:
    """The one class that the prompt names; ValueError, in words for whoever wrote it, if it names none or several."""
    named = {int(figure) if figure else WORDS.index(word.lower()) for figure, word in NAME.findall(prompt)}
    if len(named) != 1:
        found = "several" if named else "none"
        raise ValueError(f"the prompt must name one of the classes 0 to {classes - 1}, such as 7, and it names {found}")
    wanted = named.pop()
    if wanted >= classes:
        raise ValueError(f"there is no class {wanted}: the model paints 0 to {classes - 1}")
    return wanted
