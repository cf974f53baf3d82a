"""From a request to jobs for the engine, or the fault that it has. Pure; a seed that nobody has named is passed in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from shoal.node.serve.faults import TOO_LONG, BadRequest
from shoal.node.serve.requests import MAX_CHOICES, Asked, ChatAsked, CompletionAsked, Prompt
from shoal.node.serve.sampling import Sampling
from shoal.node.serve.sequence import Job
from shoal.node.serve.served import Served
from shoal.protocol.errors import LocalError

USUAL = 16  # tokens of a completion that asks for no number, as OpenAI has it
SEEDS = 1 << 64


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
    prompt = Read(served.codec.encode(text, special=False), "messages")
    if (place := _first_unknown(prompt.tokens, served)) is not None:
        raise _unknown("messages", prompt.tokens[place], served)
    stops = (*asked.stop, *served.chat.stops)
    return _plan(asked, [prompt], served, seed, served.scorer.limit, stops, asked.alternatives)


def _read(prompt: Prompt, served: Served) -> Read:
    content = prompt.content
    tokens = served.codec.encode(content) if isinstance(content, str) else content
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
