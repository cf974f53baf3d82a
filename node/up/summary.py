"""What came out, in words: for the person who watched, and for the report."""

from __future__ import annotations

from shoal.node.up.verdict import Finding, PeerEnd, problems


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
    if not finding.is_agreed:
        return (
            f"{finding.ledger.exchanges()} exchanges in {len(rounds)} rounds; a member sent "
            f"{finding.ledger.bytes_per_parameter_per_round(finding.parameters):.1f} bytes per parameter and exchange."
        )
    retried = [each for each in rounds if each.attempt > 1]
    return (
        f"{len(rounds)} of {finding.plan.to_commit} rounds committed"
        + (f", {len(retried)} of them not in the first attempt" if retried else ", each in its first attempt")
        + f"; a member sent {finding.ledger.bytes_per_parameter_per_round(finding.parameters):.1f} bytes per "
        "parameter and round."
    )


def _death(finding: Finding, victim: PeerEnd) -> str:
    fatal = next((each for each in finding.ledger.rounds() if each.round == finding.plan.kill_at), None)
    said = f"{victim.peer} was killed with SIGKILL in the all-reduce of round {finding.plan.kill_at}"
    if not finding.is_agreed:
        return f"{victim.peer} was killed with SIGKILL in round {finding.plan.kill_at}; the others went on."
    if fatal is None:
        return f"{said}; that round did not commit."
    return (
        f"{said}; that round committed all the same, in attempt {fatal.attempt}, with {fatal.contributors} of its "
        f"{fatal.members} members counted in every chunk."
    )


def _arrival(newcomer: PeerEnd, finding: Finding) -> str:
    got = "downloaded the state from the others" if finding.is_agreed else "copied the replica of another"
    said = f"{newcomer.peer} came at round {finding.plan.join_at} and {got}"
    if newcomer.first_round is None:
        return f"{said}, but took part in no round."
    return f"{said}; the first round that it took part in was round {newcomer.first_round}."


def _devices(finding: Finding) -> list[str]:
    used = list(dict.fromkeys(peer.device for peer in finding.peers if peer.device))
    return [] if used in ([], ["cpu"]) else [f"They trained on {' and on '.join(used)}."]


def _agreement(finding: Finding) -> list[str]:
    replicas = [str(finding.replicas)] if finding.replicas is not None else []
    if not finding.is_agreed or len({peer.file_hash for peer in finding.live}) > 1:
        return replicas
    state = f"All {len(finding.live)} live peers hold the same state, bit for bit: {finding.live[0].digest[:16]}."
    return [state, *replicas]


def _learning(finding: Finding) -> list[str]:
    lines = [
        f"Validation loss went from {finding.initial_loss:.3f} to {finding.final_loss:.3f} with {finding.tokens:,} "
        f"tokens; the model has {finding.parameters:,} parameters."
    ]
    if (references := finding.references) is None:
        return lines
    lines.append(f"One peer alone reaches {references.alone:.3f}, one big machine {references.joined:.3f}.")
    if (gap := finding.gap_recovered) is not None:
        lines.append(f"The swarm recovered {gap:.0%} of the distance from the one to the other.")
    return lines
