"""`[trust]`: who may do what in a run, and what its voters are prepared for. The author is named by the run's id."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from shoal.node.base.keys import Form, Help
from shoal.node.base.options import UsageError
from shoal.node.base.quantities import parse_duration
from shoal.node.manifest.base import Spec
from shoal.protocol.base.ids import PeerId
from shoal.protocol.base.peer_ids import key_of_peer

MOST_STEWARDS = 32
NEVER = "never"
LEAST_PATIENCE = 30.0  # seconds


def _not_yet(values: tuple[str, ...], what: str) -> BeforeValidator:
    """Refuses what a later version will have: whoever writes it relies on it."""

    def check(value: Any) -> Any:
        if value in values:
            raise ValueError(f"{what} {value!r} is not built yet, and this version will not pretend that it is")
        return value

    return BeforeValidator(check)


def _peers(names: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        try:
            key_of_peer(PeerId(name))
        except ValueError:
            raise ValueError(f"{name[:64]!r} is no peer: name one as `shoal status` shows it (12D3KooW...)") from None
    if len(set(names)) < len(names):
        raise ValueError("the same peer is named twice")
    return names


def _duration(text: str) -> str:
    if text != NEVER:
        try:
            seconds = parse_duration("continue_after", text)
        except UsageError as error:
            raise ValueError(str(error)) from None
        if seconds < LEAST_PATIENCE:
            raise ValueError(
                f"{text} is too soon: the members of a run lose each other for {LEAST_PATIENCE:g} s at times"
            )
    return text


class TrustSpec(Spec):
    """Who may do what in the run, and what its voters are prepared for ([log.md](log.md)).

    Its author need not be named: the run's id follows from the author's key.
    """

    stewards: Annotated[
        tuple[str, ...],
        Field(max_length=MOST_STEWARDS),
        Form("at most 32 peers, each as `shoal status` shows it"),
        AfterValidator(_peers),
        Help("Peers whose orders count as the author's: who may vote (`shoal run promote`)."),
    ] = ()
    faults: Annotated[
        Literal["crash"],
        _not_yet(("byzantine",), "the trust in voters"),
        Help('What voters may do wrong: "crash", they die and come back, but do not lie.'),
    ] = "crash"
    voters: Annotated[
        int,
        Field(ge=1, le=32),
        Help(
            "How many members have a vote, at most.",
            unit="members",
            larger="more may be lost at once, and a decision takes more messages",
            smaller="fewer messages, and the run stands still sooner; with 1 it depends on its founder",
        ),
    ] = 32
    admission: Annotated[
        Literal["open"],
        _not_yet(("invite",), "the admission"),
        Help('Who becomes a member: "open", whoever asks.'),
    ] = "open"
    continue_after: Annotated[
        str,
        Form('"never", or a time as 90s, 20min, 2h or 1d, of at least 30 s'),
        AfterValidator(_duration),
        Help(
            "After how long without a quorum of voters those who are left go on by themselves "
            "([log.md](log.md#going-on-without-a-quorum)). In runs of replicas only who comes "
            "and goes, and the last round, wait for that."
        ),
    ] = "5min"

    @property
    def patience(self) -> float | None:
        """Seconds without a quorum, after which others go on; None: they never do."""
        return parse_duration("continue_after", self.continue_after) if self.continue_after != NEVER else None
