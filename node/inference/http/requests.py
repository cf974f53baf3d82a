"""What a client may ask for: OpenAI's bodies about text, as far as they mean something here, and the jobs they become.

Sizes are bounded. Pure: a seed that nobody has named is passed in.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator, model_validator

from shoal.node.inference.engine.sequence import Job, Sampling
from shoal.node.inference.http.body import Body, Fields, misfit, path_of
from shoal.node.inference.http.faults import TOO_LONG, BadRequest
from shoal.node.inference.served import Served
from shoal.protocol.base.errors import LocalError

MAX_CHOICES = 16  # of a request, all its prompts together
MAX_STOPS = 4
MAX_ALTERNATIVES = 20
MAX_MESSAGES = 4096
IGNORED = (  # they are about accounts, caches and speed, or about tools, of which there are none
    *("user", "metadata", "store", "service_tier", "safety_identifier", "parallel_tool_calls", "prediction"),
    *("prompt_cache_key", "prompt_cache_retention", "cache_prompt", "cache_salt", "priority", "keep_alive"),
    *("request_id", "session_id", "chat_id", "conversation_id"),
    *("litellm_metadata", "litellm_call_id", "litellm_trace_id"),
    *("provider", "models", "route", "usage", "include_reasoning", "separate_reasoning", "reasoning_format"),
    # how what must be off, by `neutral`, would be done
    *("repeat_last_n", "mirostat_tau", "mirostat_eta", "dynatemp_exponent", "xtc_threshold", "min_keep"),
    *("dry_base", "dry_allowed_length", "dry_penalty_last_n", "dry_sequence_breakers", "guided_decoding_backend"),
)
NEUTRAL: dict[str, tuple[Any, ...]] = {  # keys that are refused unless they have these values
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "logit_bias": ({}, []),  # some languages know one empty table only
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
    "repetition_penalty": (1,),  # this and those below are other servers'
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
USUAL = 16  # tokens of a completion that asks for no number, as OpenAI has it
SEEDS = 1 << 64


class Prompt(NamedTuple):
    """One of the prompts of a request."""

    content: str | list[int]  # text, or tokens
    at: tuple[int, ...] = ()  # its place in the list, if it was one of a list

    def where(self, *place: int) -> str:
        """It, or a token in it, as one would write it in a program."""
        return path_of(("prompt", *self.at, *place))


def _listed(value: Any) -> Any:
    """One text as a list of it."""
    return [value] if isinstance(value, str) else value


def _parted(value: Any) -> Any:
    """One text as the list of parts that it is."""
    if not isinstance(value, str | list):
        raise misfit("must be a text, or a list of parts of type text")
    return [{"type": "text", "text": value}] if isinstance(value, str) else value


def _prompts(value: Any) -> list[Prompt]:
    """One or several, each as text or tokens; in which all are alike."""
    if isinstance(value, str):
        return [Prompt(value)]
    if not isinstance(value, list):
        raise misfit(PROMPT)
    if not value:
        return []
    kind = type(value[0])
    if kind not in (str, int, list):
        raise misfit(f"is no text, token or list of tokens: the prompt {PROMPT}", 0)
    for number, each in enumerate(value):
        if type(each) is not kind:
            raise misfit(f"is of another kind than those before: the prompt {PROMPT}", number)
    for number, each in enumerate([value] if kind is int else value if kind is list else []):
        for place, token in enumerate(each):
            if type(token) is not int or token < 0:
                raise misfit(
                    "is no token, which is a whole number from 0 on", *([number] if kind is list else []), place
                )
    return [Prompt(value)] if kind is int else [Prompt(each, (number,)) for number, each in enumerate(value)]


Stop = Annotated[str, Field(min_length=1, max_length=256)]
Count = Annotated[int, Field(ge=1)]


class StreamOptions(BaseModel):
    """Of an answer that comes in parts."""

    model_config = ConfigDict(strict=True, extra="ignore")

    include_usage: bool = False


class Most(NamedTuple):
    """How many tokens may be written; None: as many as is usual. And the name by which that was asked for."""

    tokens: int | None
    key: str


class Asked(Body):
    """What both kinds of requests have."""

    ignored, neutral = IGNORED, NEUTRAL

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
    def most(self) -> Most:
        """How many tokens may be written."""
        return Most(self.max_tokens, "max_tokens")

    @property
    def tells_usage(self) -> bool:
        """Whether a stream ends with its usage."""
        return self.stream_options is not None and self.stream_options.include_usage


class CompletionAsked(Asked):
    """A body for /v1/completions."""

    neutral: ClassVar[dict[str, tuple[Any, ...]]] = NEUTRAL | {"add_special_tokens": (True,)}

    prompts: Annotated[list[Prompt], PlainValidator(_prompts), Field(alias="prompt")]
    logprobs: Annotated[
        int | None, BeforeValidator(lambda value: None if value is False else value), Field(ge=0, le=MAX_ALTERNATIVES)
    ] = None

    @property
    def alternatives(self) -> int | None:
        """How many probable tokens are told of, beside each that was taken."""
        return self.logprobs


class Part(BaseModel):
    """Of a message's content. Whatever else a part of text has is about caches, or where it comes from."""

    model_config = ConfigDict(strict=True, extra="ignore")

    type: Literal["text"]
    text: str


class ChatMessage(Fields):
    """One message. An answer of ours may be sent back as it is."""

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
    content: Annotated[list[Part], BeforeValidator(_parted)] | None = None

    @model_validator(mode="after")
    def _says_something(self) -> ChatMessage:
        if self.content is None and self.role != "assistant":
            raise misfit("is missing: only a message of the assistant may have none", "content")
        return self

    @property
    def plain(self) -> dict[str, str]:
        """As templates know it."""
        text = "".join(part.text for part in self.content or ())
        return {"role": "system" if self.role == "developer" else self.role, "content": text}


class ChatAsked(Asked):
    """A body for /v1/chat/completions."""

    lists: ClassVar[dict[str, type[Fields]]] = {"messages": ChatMessage}
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
    def most(self) -> Most:
        """See Asked; by the newer of two names."""
        newer = self.max_completion_tokens
        return super().most if newer is None else Most(newer, "max_completion_tokens")

    @property
    def alternatives(self) -> int | None:
        """How many probable tokens are told of, beside each that was taken."""
        return (self.top_logprobs or 0) if self.logprobs else None


AskedKind = TypeVar("AskedKind", bound=Asked)


@dataclass(frozen=True, slots=True)
class Plan:
    """The choices of one answer, in their order."""

    jobs: tuple[Job, ...]
    prompt_tokens: int  # each prompt counted once


class Read(NamedTuple):
    """A prompt as tokens, and its name in errors."""

    tokens: list[int]
    where: str


def plan_completion(asked: CompletionAsked, served: Served, seed: int) -> Plan:
    """`n` choices for each prompt; BadRequest where there is a mistake."""
    if not asked.prompts:
        raise BadRequest("'prompt' is empty", "prompt")
    prompts = [_read(each, served) for each in asked.prompts]
    if len(prompts) * asked.n > MAX_CHOICES:
        key = "prompt" if len(prompts) > MAX_CHOICES else "n"
        what = f"{len(prompts)} prompts with n = {asked.n}: at most {MAX_CHOICES} choices together"
        raise BadRequest(f"'{key}' asks for too many: {what}", key)
    return _plan(asked, prompts, served, seed, USUAL, tuple(asked.stop), asked.alternatives)


def plan_chat(asked: ChatAsked, served: Served, seed: int) -> Plan:
    """`n` answers of the assistant; BadRequest where there is a mistake."""
    try:
        text = served.chat.prompt([each.plain for each in asked.messages])
    except LocalError as error:
        raise BadRequest(str(error), "messages") from error
    prompt = Read(served.vocabulary.encode(text, special=False), "messages")
    if (place := _first_unknown(prompt.tokens, served)) is not None:
        raise _unknown("messages", prompt.tokens[place], served)
    stops = (*asked.stop, *served.chat.stops)
    return _plan(asked, [prompt], served, seed, served.scorer.limit, stops, asked.alternatives)


def _read(prompt: Prompt, served: Served) -> Read:
    content = prompt.content
    tokens = served.vocabulary.encode(content) if isinstance(content, str) else content
    if not content or not tokens:
        raise BadRequest(f"'{prompt.where()}' is empty", prompt.where())
    if (place := _first_unknown(tokens, served)) is not None:
        raise _unknown(prompt.where() if isinstance(content, str) else prompt.where(place), tokens[place], served)
    return Read(tokens, prompt.where())


def _first_unknown(tokens: list[int], served: Served) -> int | None:
    """The place of the first token that the model does not know."""
    return next((place for place, each in enumerate(tokens) if each >= served.scorer.vocab), None)


def _unknown(where: str, token: int, served: Served) -> BadRequest:
    words = f"'{where}' holds the token {token}, and the model knows those below {served.scorer.vocab}"
    return BadRequest(words, where)


def _plan(
    asked: Asked,
    prompts: list[Read],
    served: Served,
    seed: int,
    usual: int,
    stops: tuple[str, ...],
    alternatives: int | None,
) -> Plan:
    """`usual` is how many tokens are written, if they fit, where no number is asked for."""
    (longest, where), limit = max(prompts, key=lambda each: len(each.tokens)), served.scorer.limit
    if len(longest) >= limit:
        what = (
            f"'{where}' has {len(longest):,} tokens, and this model's context is {limit:,} tokens with what it writes"
        )
        raise BadRequest(what, where, TOO_LONG)
    most, key = asked.most
    if most is not None and len(longest) + most > limit:
        what = (
            f"{len(longest):,} tokens of '{where}' and {most:,} to write are more than this model's context, {limit:,}"
        )
        raise BadRequest(f"'{key}' is too large: {what}", key, TOO_LONG)
    seed = seed if asked.seed is None else asked.seed
    jobs = [
        Job(
            prompt=tuple(prompt.tokens),
            most=most or min(usual, limit - len(prompt.tokens)),
            sampling=Sampling(asked.temperature, asked.top_p, (seed + number) % SEEDS),
            stops=stops if asked.ignore_eos else (*stops, *served.stops),
            ignore_end=asked.ignore_eos,
            alternatives=alternatives,
        )
        for prompt in prompts
        for number in range(asked.n)
    ]
    return Plan(tuple(jobs), sum(len(prompt.tokens) for prompt in prompts))
