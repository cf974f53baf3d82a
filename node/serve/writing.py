"""One text, without a server: the same batch, stepped by whoever wants the next part."""

from __future__ import annotations

from collections.abc import Iterator

from shoal.node.serve.batch import Batch
from shoal.node.serve.sampling import Sampling
from shoal.node.serve.sequence import Job
from shoal.node.serve.served import Served
from shoal.node.textfile import check_text
from shoal.protocol.errors import LocalError, ShoalError


class Terminal:
    """A reader that waits for every part."""

    is_gone = False
    has_room = True


def write(
    served: Served, text: str, *, most: int | None, sampling: Sampling, stops: tuple[str, ...] = ()
) -> Iterator[str]:
    """What the model writes after `text`, as it comes; LocalError if that is empty, no text, or does not fit."""
    for given, what in ((text, "the prompt"), *((stop, "a --stop") for stop in stops)):
        check_text(given, what)
    prompt, limit = tuple(served.codec.encode(text)), served.scorer.limit
    if not prompt:
        raise LocalError("the prompt is empty: give the model something to go on from")
    if strange := next((each for each in prompt if each >= served.scorer.vocab), None):
        raise LocalError(f"the prompt has the token {strange}, and the model knows those below {served.scorer.vocab}")
    most = max(1, limit - len(prompt)) if most is None else most
    if len(prompt) + most > limit:
        raise LocalError(
            f"{len(prompt):,} tokens of the prompt and {most:,} to write are more than the model's context, {limit:,}"
        )
    batch = Batch(served.scorer, served.codec)
    batch.join(Job(prompt, most, sampling, (*stops, *served.stops)), Terminal())
    while batch.busy:
        for told in batch.step():
            if isinstance(told.what, ShoalError):
                raise told.what
            yield told.what.text
