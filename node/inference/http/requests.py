"""OpenAI's requests for text, as far as they are supported here, and the jobs of the engine that they become.

Sizes are bounded. Pure: the seed for a request that names none is passed in.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator, model_validator

from shoal.node.inference.engine.sequence import Job, Sampling
from shoal.node.inference.http.body import RequestModel, path_of, validation_error
from shoal.node.inference.http.errors import TOO_LONG, BadRequest
from shoal.node.inference.served import Served
from shoal.protocol.base.errors import LocalError

MAX_CHOICES = 16  # of a request, for all its prompts together
MAX_STOPS = 4
MAX_ALTERNATIVES = 20
MAX_MESSAGES = 4096
IGNORED = (  # about accounts, caches and speed, or about tools, which are not supported
    *("user", "metadata", "store", "service_tier", "safety_identifier", "parallel_tool_calls", "prediction"),
    *("prompt_cache_key", "prompt_cache_retention", "cache_prompt", "cache_salt", "priority", "keep_alive"),
    *("request_id", "session_id", "chat_id", "conversation_id"),
    *("litellm_metadata", "litellm_call_id", "litellm_trace_id"),
    *("provider", "models", "route", "usage", "include_reasoning", "separate_reasoning", "reasoning_format"),
    # settings of features that `neutral` requires to be off
    *("repeat_last_n", "mirostat_tau", "mirostat_eta", "dynatemp_exponent", "xtc_threshold", "min_keep"),
    *("dry_base", "dry_allowed_length", "dry_penalty_last_n", "dry_sequence_breakers", "guided_decoding_backend"),
)
NEUTRAL: dict[str, tuple[Any, ...]] = {  # keys that are refused unless they have these values
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "logit_bias": ({}, []),  # some languages have only one empty table
    "suffix": ("",),
    "echo": (False,),
    "best_of": (1,),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "audio": (),
    "reasoning_effort": ("none",),
    "verbosity": ("medium",),
    "web_search_options": (),
    "repetition_penalty": (1,),  # this key and those below are not OpenAI's, but other servers'
    "repeat_penalty": (1,),
    "encoder_repetition_penalty": (1,),
    "no_repeat_ngram_size": (0,),
    "top_k": (-1, 0),
    "top_a": (0,),
    "min_p": (0,),
    "min_tokens": (0,),
    "typical_p": (1,),
    "tfs_z": (1,),
    "tfs": (1,),
    "epsilon_cutoff": (0,),
    "eta_cutoff": (0,),
    "smoothing_factor": (0,),
    "dynatemp_range": (0,),
    "mirostat": (0,),
    "dry_multiplier": (0,),
    "xtc_probability": (0,),
    "do_sample": (True,),
    "num_beams": (1,),
    "use_beam_search": (False,),
    "length_penalty": (1,),
    "early_stopping": (False,),
    "penalty_alpha": (0,),
    "guidance_scale": (1,),
    "negative_prompt": ("",),
    "stop_token_ids": ([],),
    "bad_words": ([],),
    "logits_processors": ([],),
    "ban_eos_token": (False,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "include_stop_str_in_output": (False,),
    "no_stop_trim": (False,),
    "return_full_text": (False,),
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
    "return_progress": (False,),
    "timings_per_token": (False,),
    "n_probs": (0,),
    "n_keep": (0,),
    "id_slot": (-1,),
    "slot_id": (-1,),
    "details": (False,),
    "decoder_input_details": (False,),
    "watermark": (False,),
    "grammar": ("",),
    "json_schema": ({},),
    "format": ("",),
    "options": ({},),
    "extra_body": ({},),
    "vllm_xargs": ({},),
    "think": (False,),
    "thinking": ({"type": "disabled"},),
    "enable_thinking": (False,),
    "reasoning": ({}, {"effort": "none"}, {"enabled": False}),
    "transforms": ([],),
    "plugins": ([],),
    "data_sources": ([],),
    "safe_prompt": (False,),
    "deferred": (False,),
}
PROMPT = "must be a text, a list of texts, a list of tokens, or a list of such lists"
DEFAULT_MAX_TOKENS = 16  # of a completion, as in OpenAI's API
SEEDS = 1 << 64


class Prompt(NamedTuple):
    """One prompt of a request."""

    content: str | list[int]  # text, or tokens
    at: tuple[int, ...] = ()  # its index, if the request has a list of prompts

    def where(self, *place: int) -> str:
        """The path of the prompt, or of a token in it, as one would write it in a program."""
        return path_of(("prompt", *self.at, *place))


def _as_list(value: Any) -> Any:
    """A single text as a list."""
    return [value] if isinstance(value, str) else value


def _as_parts(value: Any) -> Any:
    """A message's content that is a text as a list of parts."""
    if not isinstance(value, str | list):
        raise validation_error("must be a text, or a list of parts of type text")
    return [{"type": "text", "text": value}] if isinstance(value, str) else value


def _prompts(value: Any) -> list[Prompt]:
    """One or several prompts, all as texts or all as tokens."""
    if isinstance(value, str):
        return [Prompt(value)]
    if not isinstance(value, list):
        raise validation_error(PROMPT)
    if not value:
        return []
    kind = type(value[0])
    if kind not in (str, int, list):
        raise validation_error(f"is no text, token or list of tokens: the prompt {PROMPT}", 0)
    for number, each in enumerate(value):
        if type(each) is not kind:
            raise validation_error(f"is of another kind than those before: the prompt {PROMPT}", number)
    for number, each in enumerate([value] if kind is int else value if kind is list else []):
        for place, token in enumerate(each):
            if type(token) is not int or token < 0:
                raise validation_error(
                    "is no token, which is a whole number from 0 on", *([number] if kind is list else []), place
                )
    return [Prompt(value)] if kind is int else [Prompt(each, (number,)) for number, each in enumerate(value)]


Stop = Annotated[str, Field(min_length=1, max_length=256)]
Count = Annotated[int, Field(ge=1)]


class StreamOptions(BaseModel):
    """Options of a streamed answer."""

    model_config = ConfigDict(strict=True, extra="ignore")

    include_usage: bool = False


class TokenLimit(NamedTuple):
    """How many tokens may be written, None if the request does not say, and the key that says so."""

    tokens: int | None
    key: str


@dataclass(frozen=True, slots=True)
class Plan:
    """The choices of one answer, in their order."""

    jobs: tuple[Job, ...]
    prompt_tokens: int  # each prompt counted once


class TokenizedPrompt(NamedTuple):
    """A prompt as tokens, and its name in errors."""

    tokens: list[int]
    where: str


class TextRequest(RequestModel):
    """What both kinds of requests for text have."""

    ignored, neutral = IGNORED, NEUTRAL

    model: str
    max_tokens: Count | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] = 1.0
    top_p: Annotated[float, Field(ge=0, le=1)] = 1.0
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] = 1
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    stop: Annotated[list[Stop], BeforeValidator(_as_list)] = Field(default_factory=list, max_length=MAX_STOPS)
    stream: bool = False
    stream_options: StreamOptions | None = None
    ignore_eos: bool = False  # not OpenAI's, but other servers': go on after the end of a text

    @property
    def token_limit(self) -> TokenLimit:
        """How many tokens may be written."""
        return TokenLimit(self.max_tokens, "max_tokens")

    @property
    def wants_usage(self) -> bool:
        """Whether a stream ends with its usage."""
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    @abstractmethod
    def alternatives(self) -> int | None:
        """How many alternatives to report for each token; None: no log-probabilities at all."""

    @abstractmethod
    def plan(self, served: Served, seed: int) -> Plan:
        """The texts to write, with `seed` unless the request names one; BadRequest if the request has a mistake."""

    def _plan(
        self, prompts: list[TokenizedPrompt], served: Served, seed: int, default: int, stops: tuple[str, ...]
    ) -> Plan:
        """`default` is how many tokens are written, as far as they fit, if the request does not say."""
        (longest, where), limit = max(prompts, key=lambda each: len(each.tokens)), served.scorer.limit
        if len(longest) >= limit:
            tokens = f"'{where}' has {len(longest):,} tokens"
            words = f"{tokens}, and this model's context is {limit:,} tokens with what it writes"
            raise BadRequest(words, where, TOO_LONG)
        most, key = self.token_limit
        if most is not None and len(longest) + most > limit:
            tokens = f"{len(longest):,} tokens of '{where}' and {most:,} to write"
            words = f"'{key}' is too large: {tokens} are more than this model's context, {limit:,}"
            raise BadRequest(words, key, TOO_LONG)
        seed = seed if self.seed is None else self.seed
        jobs = [
            Job(
                prompt=tuple(prompt.tokens),
                max_tokens=most or min(default, limit - len(prompt.tokens)),
                sampling=Sampling(self.temperature, self.top_p, (seed + number) % SEEDS),
                stops=stops if self.ignore_eos else (*stops, *served.stops),
                ignore_end=self.ignore_eos,
                alternatives=self.alternatives,
            )
            for prompt in prompts
            for number in range(self.n)
        ]
        return Plan(tuple(jobs), sum(len(prompt.tokens) for prompt in prompts))


class CompletionRequest(TextRequest):
    """A body for /v1/completions."""

    neutral: ClassVar[dict[str, tuple[Any, ...]]] = NEUTRAL | {"add_special_tokens": (True,)}

    prompts: Annotated[list[Prompt], PlainValidator(_prompts), Field(alias="prompt")]
    logprobs: Annotated[
        int | None, BeforeValidator(lambda value: None if value is False else value), Field(ge=0, le=MAX_ALTERNATIVES)
    ] = None

    @property
    def alternatives(self) -> int | None:
        """See TextRequest."""
        return self.logprobs

    def plan(self, served: Served, seed: int) -> Plan:
        """See TextRequest: `n` choices for each prompt."""
        if not self.prompts:
            raise BadRequest("'prompt' is empty", "prompt")
        prompts = [_tokenized(each, served) for each in self.prompts]
        if len(prompts) * self.n > MAX_CHOICES:
            key = "prompt" if len(prompts) > MAX_CHOICES else "n"
            what = f"{len(prompts)} prompts with n = {self.n}: at most {MAX_CHOICES} choices together"
            raise BadRequest(f"'{key}' asks for too many: {what}", key)
        return self._plan(prompts, served, seed, DEFAULT_MAX_TOKENS, tuple(self.stop))


class Part(BaseModel):
    """A part of a message's content. Other keys of a text part are about caches, or about its origin."""

    model_config = ConfigDict(strict=True, extra="ignore")

    type: Literal["text"]
    text: str


class ChatMessage(RequestModel):
    """One message. A message of our own answers may be sent back unchanged."""

    ignored = (
        *("name", "id", "annotations", "citations", "provider_specific_fields", "cache_control", "token_ids", "weight"),
        *("reasoning", "reasoning_content", "reasoning_details", "thinking", "thinking_blocks"),
    )
    neutral: ClassVar[dict[str, tuple[Any, ...]]] = {
        "refusal": ("", False),
        "tool_calls": ([],),
        "function_call": (),
        "audio": (),
        "images": ([],),
        "prefix": (False,),
        "partial": (False,),
    }

    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[list[Part], BeforeValidator(_as_parts)] | None = None

    @model_validator(mode="after")
    def _has_content(self) -> ChatMessage:
        if self.content is None and self.role != "assistant":
            raise validation_error("is missing: only a message of the assistant may have none", "content")
        return self

    @property
    def plain(self) -> dict[str, str]:
        """The message in the form that templates take."""
        text = "".join(part.text for part in self.content or ())
        return {"role": "system" if self.role == "developer" else self.role, "content": text}


class ChatRequest(TextRequest):
    """A body for /v1/chat/completions."""

    lists: ClassVar[dict[str, type[RequestModel]]] = {"messages": ChatMessage}
    neutral: ClassVar[dict[str, tuple[Any, ...]]] = NEUTRAL | {
        "add_special_tokens": (False,),  # the template writes them
        "add_generation_prompt": (True,),
        "continue_final_message": (False,),
        "chat_template_kwargs": ({},),
        "documents": ([],),
    }

    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=MAX_MESSAGES)]
    max_completion_tokens: Count | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_ALTERNATIVES)] | None = None

    @property
    def token_limit(self) -> TokenLimit:
        """See TextRequest; the newer of two keys counts."""
        newer = self.max_completion_tokens
        return super().token_limit if newer is None else TokenLimit(newer, "max_completion_tokens")

    @property
    def alternatives(self) -> int | None:
        """See TextRequest."""
        return (self.top_logprobs or 0) if self.logprobs else None

    def plan(self, served: Served, seed: int) -> Plan:
        """See TextRequest: `n` answers of the assistant."""
        try:
            text = served.chat.prompt([each.plain for each in self.messages])
        except LocalError as error:
            raise BadRequest(str(error), "messages") from error
        prompt = TokenizedPrompt(served.vocabulary.encode(text, special=False), "messages")
        if (place := _first_unknown(prompt.tokens, served)) is not None:
            raise _unknown_token("messages", prompt.tokens[place], served)
        return self._plan([prompt], served, seed, served.scorer.limit, (*self.stop, *served.chat.stops))


def _tokenized(prompt: Prompt, served: Served) -> TokenizedPrompt:
    """BadRequest if the prompt is empty, or has tokens that the model does not know."""
    content = prompt.content
    tokens = served.vocabulary.encode(content) if isinstance(content, str) else content
    if not content or not tokens:
        raise BadRequest(f"'{prompt.where()}' is empty", prompt.where())
    if (place := _first_unknown(tokens, served)) is not None:
        where = prompt.where() if isinstance(content, str) else prompt.where(place)
        raise _unknown_token(where, tokens[place], served)
    return TokenizedPrompt(tokens, prompt.where())


def _first_unknown(tokens: list[int], served: Served) -> int | None:
    """The index of the first token that the model does not know."""
    return next((place for place, each in enumerate(tokens) if each >= served.scorer.vocab), None)


def _unknown_token(where: str, token: int, served: Served) -> BadRequest:
    words = f"'{where}' holds the token {token}, and the model knows those below {served.scorer.vocab}"
    return BadRequest(words, where)
