"""OpenAI's request for pictures, as far as it applies here. Sizes are bounded.

The prompt names a class: a digit, as a figure or in words.
"""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import Field, field_validator

from shoal.node.diffusion.mixture import GUIDANCE, STEPS
from shoal.node.inference.http.body import RequestModel
from shoal.node.inference.http.errors import BadRequest

WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
NAME = re.compile(rf"\b(?:(\d{{1,9}})|({'|'.join(WORDS)}))\b", re.IGNORECASE)
MAX_PICTURES = 10  # of a request, as OpenAI has it
MAX_STEPS = 200
MAX_SIDE = 1024  # pixels
USUAL_SIDE = 256
IGNORED = ("user", "quality", "moderation", "style", "output_compression")  # they have no effect on the pictures
NEUTRAL: dict[str, tuple[Any, ...]] = {  # keys that are refused unless they have these values
    "response_format": ("b64_json",),
    "output_format": ("png",),
    "background": ("auto", "opaque"),
    "stream": (False,),
}


def class_of(prompt: str, classes: int) -> int:
    """The class that the prompt names; ValueError, in words for the user, if it names none or several."""
    named = {int(figure) if figure else WORDS.index(word.lower()) for figure, word in NAME.findall(prompt)}
    if len(named) != 1:
        found = "several" if named else "none"
        raise ValueError(f"the prompt must name one of the classes 0 to {classes - 1}, such as 7, and it names {found}")
    wanted = named.pop()
    if wanted >= classes:
        raise ValueError(f"there is no class {wanted}: the model paints 0 to {classes - 1}")
    return wanted


class ImagesRequest(RequestModel):
    """A body for /v1/images/generations."""

    ignored, neutral = IGNORED, NEUTRAL

    model: str = ""  # empty: the only one
    prompt: Annotated[str, Field(max_length=4000)]
    n: Annotated[int, Field(ge=1, le=MAX_PICTURES)] = 1
    size: str = "auto"
    seed: Annotated[int, Field(ge=0, lt=2**63)] | None = None  # this and all below are extensions of OpenAI's API
    steps: Annotated[int, Field(ge=1, le=MAX_STEPS)] = STEPS
    guidance: Annotated[float, Field(ge=0, le=20)] = GUIDANCE

    @field_validator("guidance", mode="before")
    @classmethod
    def _any_number(cls, value: Any) -> Any:
        return float(value) if type(value) is int else value

    def scale(self, side: int) -> int:
        """The factor from the model's `side` to the requested size; BadRequest if it is not a whole number."""
        if self.size == "auto":
            return max(1, USUAL_SIDE // side)
        found = re.fullmatch(r"(\d{1,5})x(\d{1,5})", self.size)
        wide, high = (int(found[1]), int(found[2])) if found else (0, 0)
        if wide != high or not side <= wide <= MAX_SIDE or wide % side:
            raise BadRequest(
                f"size must be a square whose sides are a multiple of {side} pixels and at most {MAX_SIDE}, such as "
                f"{side * (USUAL_SIDE // side or 1)}x{side * (USUAL_SIDE // side or 1)}, or auto",
                "size",
            )
        return wide // side
