"""What a client may ask for: OpenAI's bodies about text, as far as they mean something here. Sizes are bounded."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from shoal.node.serve.body import Body

MAX_CHOICES = 16  # of a request, all its prompts together
MAX_STOPS = 4
MAX_ALTERNATIVES = 20
MAX_MESSAGES = 4096
IGNORED = (  # they are about accounts and caches
    *("user", "metadata", "store", "service_tier", "prompt_cache_key", "safety_identifier", "parallel_tool_calls"),
)
NEUTRAL: dict[str, tuple[Any, ...]] = {  # keys that are refused unless they have these values
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "logit_bias": ({},),
    "suffix": ("",),
    "echo": (False,),
    "best_of": (1,),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
}
SHAPES = {"prompt": "must be a text, a list of texts, a list of tokens, or a list of such lists"}  # of unions


def _listed(value: Any) -> Any:
    """One text as a list of it."""
    return [value] if isinstance(value, str) else value


Stop = Annotated[str, Field(min_length=1, max_length=256)]
Token = Annotated[int, Field(ge=0)]
Count = Annotated[int, Field(ge=1)]


class StreamOptions(BaseModel):
    """Of an answer that comes in parts."""

    model_config = ConfigDict(strict=True, extra="ignore")

    include_usage: bool = False


class Asked(Body):
    """What both kinds of requests have."""

    ignored, neutral, shapes = IGNORED, NEUTRAL, SHAPES

    model: str
    max_tokens: Count | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] = 1.0
    top_p: Annotated[float, Field(ge=0, le=1)] = 1.0
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] = 1
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    stop: Annotated[list[Stop], BeforeValidator(_listed)] = Field(default_factory=list, max_length=MAX_STOPS)
    stream: bool = False
    stream_options: StreamOptions | None = None
    ignore_eos: bool = False  # not OpenAI's, but known from other servers: go on after the end of a text

    @property
    def tells_usage(self) -> bool:
        """Whether a stream ends with its usage."""
        return self.stream_options is not None and self.stream_options.include_usage


class CompletionAsked(Asked):
    """A body for /v1/completions."""

    prompt: str | list[str] | list[Token] | list[list[Token]]
    logprobs: Annotated[int, Field(ge=0, le=MAX_ALTERNATIVES)] | None = None

    @property
    def prompts(self) -> list[str] | list[list[int]]:
        """One or several, each as text or tokens."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if self.prompt and isinstance(self.prompt[0], int):
            return [[each for each in self.prompt if isinstance(each, int)]]
        return self.prompt  # type: ignore[return-value]

    @property
    def alternatives(self) -> int | None:
        """How many probable tokens are told of, beside each that was taken."""
        return self.logprobs


class Part(BaseModel):
    """Of a message's content."""

    model_config = ConfigDict(strict=True, extra="ignore")

    type: Literal["text"]
    text: str


class ChatMessage(BaseModel):
    """One message."""

    model_config = ConfigDict(strict=True, extra="forbid")

    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[Part]
    name: str | None = None

    @property
    def plain(self) -> dict[str, str]:
        """As templates know it."""
        text = self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)
        return {"role": "system" if self.role == "developer" else self.role, "content": text}


class ChatAsked(Asked):
    """A body for /v1/chat/completions."""

    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=MAX_MESSAGES)]
    max_completion_tokens: Count | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_ALTERNATIVES)] | None = None

    @property
    def most(self) -> int | None:
        """Tokens to write at most, by the newer of two names."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def alternatives(self) -> int | None:
        """How many probable tokens are told of, beside each that was taken."""
        return (self.top_logprobs or 0) if self.logprobs else None


AskedKind = TypeVar("AskedKind", bound=Asked)
