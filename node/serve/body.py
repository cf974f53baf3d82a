"""From a JSON body to the request that it is, by one rule for all kinds of requests.

What is null is absent. What means nothing here is ignored, or refused if it would change the answer: better an error
than an answer to another question. So is every key that nobody knows.
"""

from __future__ import annotations

import json
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from shoal.node.serve.faults import UNSUPPORTED, BadRequest


class Body(BaseModel):
    """A request. What is OpenAI's, and no field of it, is named in `ignored` or in `neutral`."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    ignored: ClassVar[tuple[str, ...]] = ()  # keys that may have any value
    neutral: ClassVar[dict[str, tuple[Any, ...]]] = {}  # keys that are refused unless they have these values
    shapes: ClassVar[dict[str, str]] = {}  # what a field must be, where the library's words help nobody

    @model_validator(mode="before")
    @classmethod
    def _without_what_means_nothing(cls, table: Any) -> Any:
        if not isinstance(table, dict):
            return table
        kept = {key: each for key, each in table.items() if each is not None and key not in cls.ignored}
        for key, allowed in cls.neutral.items():
            if key in kept and kept.pop(key) not in allowed:
                values = " or ".join(map(json.dumps, allowed))
                message = f"'{key}' must be {values} here: another value would change the answer, and is not supported"
                raise BadRequest(message, key, UNSUPPORTED)
        return kept


AnyBody = TypeVar("AnyBody", bound=Body)


def read_asked(kind: type[AnyBody], body: Any) -> AnyBody:
    """The request that a JSON body is; BadRequest, which names the parameter, if it is none."""
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        first = min(error.errors(include_url=False), key=lambda each: each["type"] != "extra_forbidden")
        where = str(first["loc"][0])[:100] if first["loc"] else None
        if first["type"] == "extra_forbidden":
            raise BadRequest(f"unknown or unsupported parameter '{where}'", where, UNSUPPORTED) from error
        if first["type"] == "missing":
            raise BadRequest(f"you must provide '{where}'", where) from error
        if where is None:
            raise BadRequest("the body must be a JSON object") from error
        raise BadRequest(f"'{where}': {kind.shapes.get(where, first['msg'])}", where) from error
