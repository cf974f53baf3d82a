"""From a request to jobs for the engine, or the fault that it has. Pure; a seed that nobody has named is passed in."""

from __future__ import annotations

from dataclasses import dataclass

from shoal.node.serve.faults import TOO_LONG, BadRequest
from shoal.node.serve.requests import MAX_CHOICES, Asked, ChatAsked, CompletionAsked
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


def plan_completion(asked: CompletionAsked, served: Served, seed: int) -> Plan:
    """`n` choices for each prompt; BadRequest where there is a mistake."""
    prompts = [_tokens(each, served) for each in asked.prompts]
    if not prompts:
        raise BadRequest("the prompt is empty", "prompt")
    if len(prompts) * asked.n > MAX_CHOICES:
        raise BadRequest(f"{len(prompts)} prompts with n = {asked.n}: at most {MAX_CHOICES} choices together", "prompt")
    return _plan(
        asked, prompts, served, seed, (asked.max_tokens, USUAL), "prompt", tuple(asked.stop), asked.alternatives
    )


def plan_chat(asked: ChatAsked, served: Served, seed: int) -> Plan:
    """`n` answers of the assistant; BadRequest where there is a mistake."""
    try:
        text = served.chat.prompt([each.plain for each in asked.messages])
    except LocalError as error:
        raise BadRequest(str(error), "messages") from error
    prompt = served.codec.encode(text, special=False)
    _check_known(prompt, served, "messages")
    stops = (*asked.stop, *served.chat.stops)
    limits = (asked.most, served.scorer.limit)
    return _plan(asked, [prompt], served, seed, limits, "messages", stops, asked.alternatives)


def _tokens(prompt: str | list[int], served: Served) -> list[int]:
    tokens = served.codec.encode(prompt) if isinstance(prompt, str) else prompt
    if not prompt or not tokens:
        raise BadRequest("the prompt is empty", "prompt")
    _check_known(tokens, served, "prompt")
    return tokens


def _check_known(tokens: list[int], served: Served, param: str) -> None:
    vocab = served.scorer.vocab
    if strange := next((each for each in tokens if each >= vocab), None):
        raise BadRequest(f"{param} holds the token {strange}, and the model knows those below {vocab}", param)


def _plan(
    asked: Asked,
    prompts: list[list[int]],
    served: Served,
    seed: int,
    most: tuple[int | None, int],
    param: str,
    stops: tuple[str, ...],
    alternatives: int | None,
) -> Plan:
    """`most` are the tokens that were asked for, and as many as there are otherwise, if they fit."""
    longest, limit = max(map(len, prompts)), served.scorer.limit
    if longest >= limit:
        what = f"{param} has {longest:,} tokens, and this model's context is {limit:,} tokens with what it writes"
        raise BadRequest(what, param, TOO_LONG)
    if most[0] is not None and longest + most[0] > limit:
        what = f"{longest:,} tokens of {param} and {most[0]:,} to write are more than this model's context, {limit:,}"
        raise BadRequest(what, "max_tokens", TOO_LONG)
    seed = seed if asked.seed is None else asked.seed
    jobs = [
        Job(
            prompt=tuple(prompt),
            most=most[0] or min(most[1], limit - len(prompt)),
            sampling=Sampling(asked.temperature, asked.top_p, (seed + number) % SEEDS),
            stops=stops if asked.ignore_eos else (*stops, *served.stops),
            ignore_end=asked.ignore_eos,
            alternatives=alternatives,
        )
        for prompt in prompts
        for number in range(asked.n)
    ]
    return Plan(tuple(jobs), sum(map(len, prompts)))
