"""The verdict of a play: its problems, its summary in words, and the object of `--json`, as pure functions.

A play went well if all live peers hold the same state to the bit (in the files that they wrote), the validation loss
fell as far as the manifest demands, and a planned death really happened in the middle of the all-reduce. In a run of
replicas no state is agreed: there the validation loss is that of their mean.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from shoal.node.client.report.story import Ledger
from shoal.node.client.up.measuring import References, Replicas
from shoal.node.client.up.plan import Plan

Outcome = Literal["finished", "killed", "joined"]


@dataclass(frozen=True, slots=True)
class PeerEnd:
    """How one peer ended."""

    peer: str
    outcome: Outcome
    round: int
    digest: str  # state root
    file_hash: str | None = None  # of the state file that it wrote; None if it was killed
    first_round: int | None = None  # of a newcomer: the first round in which it took part
    device: str = ""  # on which it trained; empty if unknown


@dataclass(frozen=True, slots=True)
class Finding:
    """Everything that was observed and measured in one play."""

    plan: Plan
    ledger: Ledger
    peers: tuple[PeerEnd, ...]
    parameters: int
    tokens: int
    initial_loss: float
    final_loss: float
    validation_tokens: int  # on which these were measured
    references: References | None = None
    sample: str = ""  # what the model writes at the end
    replicas: Replicas | None = None  # of methods whose workers' weights differ

    @property
    def has_exchanges(self) -> bool:
        """Whether its members agree on the result of the last round only, and exchange in pairs before."""
        return self.plan.manifest.method.has_replicas

    @property
    def live(self) -> list[PeerEnd]:
        """The peers that were there at the end."""
        return [each for each in self.peers if each.outcome != "killed"]

    @property
    def ratio(self) -> float:
        """Final to initial validation loss."""
        return self.final_loss / self.initial_loss

    @property
    def gap_recovered(self) -> float | None:
        """`References.gap_recovered`; None without references."""
        return self.references.gap_recovered(self.final_loss) if self.references else None


def problems(finding: Finding) -> list[str]:
    """All problems of the play; none if it went well."""
    found, plan = _disagreements(finding), finding.plan
    if not finding.ratio <= plan.manifest.goal.loss_ratio:  # NaN is a problem, too
        found.append(
            f"the validation loss fell to {finding.ratio:.2f} of what it was; the manifest wants "
            f"{plan.manifest.goal.loss_ratio:.2f}"
        )
    if plan.victim and not any(each.outcome == "killed" for each in finding.peers):
        found.append(f"{plan.victim} was to be killed in the all-reduce of round {plan.kill_at} and was not")
    return found


def _disagreements(finding: Finding) -> list[str]:
    found, live = [], finding.live
    if len({each.file_hash for each in live}) != 1 or len({(each.round, each.digest) for each in live}) != 1:
        found.append("the live peers do not hold the same state")
    if disputed := finding.ledger.disputed():
        found.append(f"peers report different digests for round {_listing(disputed)}")
    return found


def as_json(finding: Finding) -> dict[str, Any]:
    """The object that `--json` prints; a loss that is not a number is null."""
    references = finding.references
    return {
        "rounds": finding.plan.rounds,
        "resumed_from": finding.plan.resumed.round if finding.plan.resumed else None,
        "committed": [each.as_json() for each in finding.ledger.rounds()],
        "peers": [
            {
                "peer": each.peer,
                "outcome": each.outcome,
                "round": each.round,
                "digest": each.digest,
                "device": each.device,
            }
            for each in finding.peers
        ],
        "parameters": finding.parameters,
        "tokens": finding.tokens,
        "initial_val_loss": _finite(finding.initial_loss),
        "val_loss": _finite(finding.final_loss),
        "val_tokens": finding.validation_tokens,
        "replicas": finding.replicas.as_json() if finding.replicas else None,
        "alone_val_loss": _finite(references.alone) if references else None,
        "joined_val_loss": _finite(references.joined) if references else None,
        "gap_recovered": _finite(finding.gap_recovered),
        "bytes_per_parameter_per_round": finding.ledger.bytes_per_parameter_per_round(finding.parameters),
        "out": str(finding.plan.out),
    }


def _finite(value: float | None) -> float | None:
    """JSON knows neither NaN nor infinity."""
    return value if value is not None and math.isfinite(value) else None


def _listing(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))


# -- in words ----------------------------------------------------------------------------------------------


def in_words(finding: Finding) -> list[str]:
    """The summary, line by line."""
    return [
        *_resumption(finding),
        _rounds(finding),
        *(_death(finding, peer) for peer in finding.peers if peer.outcome == "killed"),
        *(_arrival(peer, finding) for peer in finding.peers if peer.outcome == "joined"),
        *_devices(finding),
        *_agreement(finding),
        *_learning(finding),
        *(f"PROBLEM: {problem}." for problem in problems(finding)),
    ]


def _resumption(finding: Finding) -> list[str]:
    if (resumed := finding.plan.resumed) is None:
        return []
    return [f"It went on from round {resumed.round} of {resumed.folder}, as a new lineage."]


def _rounds(finding: Finding) -> str:
    rounds = finding.ledger.rounds()
    if finding.has_exchanges:
        return (
            f"{finding.ledger.exchanges()} exchanges in {len(rounds)} rounds; a member sent "
            f"{finding.ledger.bytes_per_parameter_per_round(finding.parameters):.1f} bytes per parameter and exchange."
        )
    return (
        f"{len(rounds)} of {finding.plan.to_commit} rounds committed"
        + f"; a member sent {finding.ledger.bytes_per_parameter_per_round(finding.parameters):.1f} bytes per "
        "parameter and round."
    )


def _death(finding: Finding, victim: PeerEnd) -> str:
    fatal = next((each for each in finding.ledger.rounds() if each.round == finding.plan.kill_at), None)
    said = f"{victim.peer} was killed with SIGKILL in the all-reduce of round {finding.plan.kill_at}"
    if finding.has_exchanges:
        return f"{victim.peer} was killed with SIGKILL in round {finding.plan.kill_at}; the others went on."
    if fatal is None:
        return f"{said}; that round did not commit."
    return (
        f"{said}; that round committed all the same, with {fatal.contributors} of its "
        f"{fatal.members} members counted in every chunk."
    )


def _arrival(newcomer: PeerEnd, finding: Finding) -> str:
    got = "copied the replica of another" if finding.has_exchanges else "downloaded the state from the others"
    said = f"{newcomer.peer} came at round {finding.plan.join_at} and {got}"
    if newcomer.first_round is None:
        return f"{said}, but took part in no round."
    return f"{said}; the first round that it took part in was round {newcomer.first_round}."


def _devices(finding: Finding) -> list[str]:
    used = list(dict.fromkeys(peer.device for peer in finding.peers if peer.device))
    return [] if used in ([], ["cpu"]) else [f"They trained on {' and on '.join(used)}."]


def _agreement(finding: Finding) -> list[str]:
    replicas = [str(finding.replicas)] if finding.replicas is not None else []
    if len({peer.file_hash for peer in finding.live}) > 1:
        return replicas
    state = f"All {len(finding.live)} live peers hold the same state, bit for bit: {finding.live[0].digest[:16]}."
    return [state, *replicas]


def _learning(finding: Finding) -> list[str]:
    lines = [
        f"Validation loss went from {finding.initial_loss:.3f} to {finding.final_loss:.3f} with {finding.tokens:,} "
        f"tokens; the model has {finding.parameters:,} parameters. The loss was measured with "
        f"{finding.validation_tokens:,} tokens that were held out."
    ]
    if (references := finding.references) is None:
        return lines
    lines.append(f"One peer alone reaches {references.alone:.3f}, one big machine {references.joined:.3f}.")
    if (gap := finding.gap_recovered) is not None:
        lines.append(f"The swarm recovered {gap:.0%} of the distance from the one to the other.")
    return lines
