"""A run as the API shows it, read from its parts."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, cast

from shoal.dht.directory import Evidence
from shoal.node.api import answers
from shoal.node.api.answers import (
    ContinuedRun,
    PeerConnection,
    PeerRow,
    RunDetails,
    RunMetrics,
    RunRow,
    Timeline,
    WorkerRow,
)
from shoal.node.base.kept import names
from shoal.node.base.malloc import resident_bytes
from shoal.node.base.quantities import as_duration
from shoal.node.manifest.model import writes_text
from shoal.node.manifest.requirements import requirements
from shoal.node.run import node_state
from shoal.protocol.base.ids import NO_DIGEST, PeerId, short
from shoal.protocol.messages.membership import RunStatus
from shoal.protocol.net.measure.link import LinkReport
from shoal.protocol.net.measure.rates import Traffic
from shoal.protocol.net.peers.network import Network

if TYPE_CHECKING:
    from shoal.node.run.run import Run
    from shoal.node.run.runs import Runs

LAST_ROUNDS = 10
DAY = 86_400  # seconds
MOST_GONE = 8  # members that have left, in a row
UNREACHED = cast(PeerConnection, dict.fromkeys(PeerConnection.__annotations__))


def row(run: Run, traffic: Traffic) -> RunRow:
    """The run in `shoal status`."""
    member, state = run.member, run.outer.committed.current
    progress = run.training.progress if run.training is not None else None
    validation = run.commits.validation
    return {
        "run": run.id.hex(),
        "name": run.manifest.name,
        "round": state.round,
        "first_round": run.manifest.first_round,
        "members": len(member.membership.alive()) + 1,
        "left": [*member.membership.gone()[:MOST_GONE]],
        "link": None,
        "digest": member.status.history.hex(),
        "root": state.root.hex(),
        "loss": run.training.loss if run.training is not None else None,
        "validation_loss": validation.loss if validation is not None else None,
        "validation_round": validation.round if validation is not None else None,
        "seconds_left": None if run.failure else seconds_left(run.manifest.rounds.last, state.round, run.commits.pace),
        "step": progress.step if progress is not None else 0,
        "samples": run.samples,
        "phase": "failed" if run.failure else "finished" if run.is_finished else member.phase,
        "trains": member.status.trains,
        "is_creator": run.genesis.author == member.me,
        "is_resting": run.is_resting,
        **_worker(run),
        "tokens_per_second": progress.tokens_per_second if progress is not None else None,
        "failure": run.failure or None,
        "may_be_opened_again": run.may_be_opened_again,
        "worker_failure": (run.training.failure or None) if run.training is not None else None,
        "worker_lost": (run.training.lost or None) if run.training is not None else None,
        "waiting_for": waiting_for(run),
        "branch": branch(run),
        "branch_event": run.branches.words or None,
        "branch_event_at": run.branches.at,
        "branches": len(member.log.register.earlier),
        "bytes_sent": traffic.sent,
        "bytes_received": traffic.received,
        "bulk": by_path(traffic),
        "warnings": run.detours.warnings() if is_active(run) else [],
        "last": run.manifest.rounds.last,
        "checkpoint": run.saving.keeper.newest or None,
        "checkpoint_at": run.saving.keeper.newest_at,
        "writes_text": writes_text(run.manifest.model),
        "exchanges": run.meters.exchanges if run.manifest.method.has_replicas else None,
        "experts": None,
    }


def seconds_left(last: int | None, round: int, pace: float) -> float | None:
    """How long a run goes on after a round at a pace in seconds a round; None if that is unknown, or it has no end."""
    return pace * max(0, last - round) if last and pace else None


def broken_row(run: str, reason: str, name: str | None = None) -> RunRow:
    """A run that this node was in and cannot enter again, in `shoal status`."""
    return {**_row_of_closed(run, name), "phase": "failed", "failure": reason}


def restoring_row(run: str, is_paused: bool = False, lack: str | None = None, name: str | None = None) -> RunRow:
    """A run that this node enters again, now or when it is resumed. `lack` is why it cannot be entered yet."""
    return {**_row_of_closed(run, name), "phase": "paused" if is_paused else "restoring", "waiting_for": lack}


def all_rows(runs: Runs, network: Network) -> list[RunRow]:
    """The runs in `shoal status`: families of experts, in whose rows most values are None, then the other runs."""
    families = [cast(RunRow, {**_unknown(), **each}) for each in runs.families.rows()]
    open_runs = [row(run, network.traffic(run.id)) for run in runs.open.values()]
    return [*(_with_link(each, runs) for each in (*families, *open_runs)), *rows_of_closed(runs)]


def needs_others(row: RunRow, has_lost: bool = False) -> bool:
    """Whether to send a run's link to others: nobody else is in it, and we have founded it, or the others have left.

    Not if it `has_lost` members without a goodbye: they may be cut off, or we.
    """
    is_alone = (
        row["members"] == 1
        and not has_lost
        and not row.get("is_resting")
        and row["phase"] not in ("finished", "failed")
    )
    return is_alone and bool(row["is_creator"] or row["left"])


def _with_link(row: RunRow, runs: Runs) -> RunRow:
    run = runs.open.get(row["run"])
    has_lost = run is not None and bool(run.member.membership.lost_since(-math.inf))
    if not needs_others(row, has_lost) or runs.families.is_part(row["run"]):
        return row
    return {**row, "link": runs.link(row["run"])["link"]}


def rows_of_closed(runs: Runs) -> list[RunRow]:
    """The rows of runs that are not open: those still to be restored, and those that cannot be."""
    return [
        *(
            restoring_row(run, bool(runs.paused), runs.restore_obstacles.get(run), runs.names.get(run))
            for run in runs.restoring
        ),
        *(broken_row(run, why, runs.names.get(run)) for run, why in runs.broken.items()),
    ]


def _row_of_closed(run: str, name: str | None) -> RunRow:
    return cast(RunRow, _unknown() | {"run": run, "name": name, "round": 0, "step": 0, "samples": 0})


def _unknown() -> dict[str, Any]:
    """A row with all values None."""
    return dict.fromkeys(RunRow.__annotations__)


def _worker(run: Run) -> WorkerRow:
    """The worker's device, memory and speed; None where there is no worker, or the value is not known."""
    training = run.training
    pid, progress = (training.pid, training.progress) if training is not None else (None, None)
    return {
        "device": training.device if training is not None else None,
        "worker_memory": resident_bytes(pid) if pid else None,
        "device_memory": progress.device_bytes if progress is not None else None,
        "micro_batch": (progress.micro_batch or None) if progress is not None else None,
        "utilisation": training.utilisation if training is not None else None,
        "model_flops_utilization": progress.model_flops_utilization if progress is not None else None,
    }


def waiting_for(run: Run) -> str | None:
    """What the run waits for, in one sentence; None if it does not wait."""
    if run.failure or run.is_finished:
        return None
    if run.driver.trouble:
        return run.driver.trouble
    if run.training is not None and run.training.trouble:
        return run.training.trouble
    number = run.outer.committed.current.round + 1
    is_undecided = run.member.awaits_quorum
    if run.member.phase == "syncing":
        here, whole = run.member.progress()
        if whole:
            left = run.member.seconds_left(run.driver.now())
            still = f", and the rest takes about {as_duration(left)}" if left is not None else ""
            return f"the state is being downloaded: {here} of {whole} chunks are here{still}"
        if not is_undecided:
            return _not_admitted(run)
    if is_undecided:
        return f"{_undecided(run)}; {_goes_on(run)}"
    if run.obstacle and run.member.phase == "matching":
        return f"round {number} waits: {run.obstacle}"
    missing = run.member.waiting_for()
    return f"round {number} waits for {', '.join(map(short, missing))}" if missing else None


def without_quorum(run: Run) -> ContinuedRun:
    """With whom the run would go on now, since those who are here can decide nothing, and without whom."""
    log, register = run.member.log, run.member.log.register
    here = log.survivors
    known = dict.fromkeys((*register.voters, *(member.peer for member in register.members)))
    return {
        "run": run.id.hex(),
        "name": run.manifest.name,
        "why": _undecided(run),
        "round": run.outer.committed.current.round,
        "keeps_replicas": run.manifest.method.has_replicas,
        "here": [*here],
        "away": [peer for peer in known if peer not in here],
    }


def _undecided(run: Run) -> str:
    """Why the members that are here can decide nothing."""
    log = run.member.log
    if log.register.yields_to != NO_DIGEST:
        return "the run has yielded to another branch of its log, and nobody who is on that is to be found"
    voters = len(log.register.voters)
    those = f"a quorum of its {voters} voters" if voters > 1 else "its only voter"
    return "; ".join([f"the run waits until {those} is back", *_missing(run, log.deciding)])


def _missing(run: Run, voters: Iterable[PeerId]) -> list[str]:
    """Who of these does not vote here, and why; a phrase for each reason."""
    log = run.member.log
    missing = [voter for voter in voters if voter not in log.here]
    here = [peer for peer in missing if _is_up(run, peer)]
    elsewhere = [peer for peer in here if log.is_elsewhere(peer)]
    found = {
        "away: {}": [peer for peer in missing if peer not in here],
        "back without a vote: {}": [peer for peer in here if peer not in elsewhere],
        "on another branch of the log: {}": elsewhere,
    }
    return [words.format(names(peers)) for words, peers in found.items() if peers]


def _is_up(run: Run, peer: PeerId) -> bool:
    """Whether a member is there, perhaps in another life than the log knows, or on another branch."""
    return peer == run.member.me or run.member.membership.is_alive(peer)


def _goes_on(run: Run) -> str:
    """What this node does if they do not come back."""
    log = run.member.log
    if log.goes_on_in is None and log.waits_for_ever:
        return "only `shoal run continue` goes on without them"
    if log.goes_on_in == 0:
        return "it goes on without them once somebody who is here has the state"
    after = f"in {as_duration(log.goes_on_in)}" if log.goes_on_in is not None else "after a while"
    return f"it goes on without them {after}, or at once by `shoal run continue`"


def branch(run: Run) -> str | None:
    """That the run has gone on without a quorum, and who is not back yet; None if it has not, or all are."""
    if (found := run.member.log.left_behind) is None or not found[1]:
        return None
    before, away = found
    since = "".join(f" after round {part.round}" for part in before.parts)
    return f"could decide nothing{since}, and goes on without {names(away)}, who may come back"


def _not_admitted(run: Run) -> str | None:
    """That this node is no member yet, and who could change that; None if it is one."""
    log = run.member.log
    if log.is_below_anchor:
        return (
            "the log here ends before the entry that the run's link names: this node waits for a member that has more"
            + (
                ", or until one without more was here for a minute, as the link is of another branch of the log"
                if log.seeks_branch
                else ""
            )
        )
    voters = log.register.voters
    here = sum(voter in log.here for voter in voters)
    admit = f"the run's voters must admit this node: {here} of {len(voters)} are here"
    return None if log.is_member else "; ".join([admit, *_missing(run, voters)])


def peer_rows(run: Run, reached: Callable[[PeerId], PeerConnection]) -> list[PeerRow]:
    """The run's other members in `shoal peers`, with how they are `reached`."""
    rows: list[PeerRow] = []
    for peer in run.member.membership.alive():
        status = run.member.membership.status(peer)
        rows.append(
            {
                "peer": peer,
                "run": run.id.hex(),
                "round": status.round if status is not None else None,
                **reached(peer),
                "phase": _phase(status, run.manifest.rounds.last) if status is not None else None,
                "loss": status.loss if status is not None else None,
            }
        )
    return rows


def all_peer_rows(runs: Sequence[Run], network: Network) -> list[PeerRow]:
    """`shoal peers`: the members of all runs, and after them other connected peers."""

    def reached(peer: PeerId) -> PeerConnection:
        return as_reached(network.link_report(peer))

    rows = [row for run in runs for row in peer_rows(run, reached)]
    in_runs = {row["peer"] for row in rows}
    rest = [link.peer for link in network.links() if link.peer not in in_runs]
    return rows + [cast(PeerRow, {"peer": peer, "run": None, "round": None, **reached(peer)}) for peer in rest]


def as_reached(report: LinkReport) -> PeerConnection:
    """How a peer is reached: path, reason, round trip, and rates in bytes a second (None: not measured yet)."""
    if report.path is None:
        return UNREACHED.copy()
    reason, gauge = report.reason(time.time()), report.gauge
    return {
        "path": report.path,
        "reason": reason.words,
        "reason_code": reason.code,
        "relay": report.relay,
        "rtt_ms": 1000 * gauge.rtt if gauge.rtt is not None else None,
        "send_rate": gauge.going.rate.value,
        "receive_rate": gauge.coming.value,
    }


def details(run: Run) -> RunDetails:
    """The run in `shoal run show`."""
    last = run.manifest.rounds.last
    voters = run.member.log.register.voters
    own = _member(run.member.me, run.member.status, last, voters)
    others = [
        _member(peer, status, last, voters)
        for peer in run.member.membership.alive()
        if (status := run.member.membership.status(peer)) is not None
    ]
    return {
        "run": run.id.hex(),
        "name": run.manifest.name,
        "author": run.genesis.author,
        "worker_socket": str(run.training.socket or "") if run.training is not None else "",
        "manifest": run.manifest.model_dump(mode="json"),
        "members": [own, *others],
        "rounds": run.commits.as_json(LAST_ROUNDS),
    }


def timeline(run: Run, round: int) -> Timeline:
    """What happened in a round of the run, and when; UnknownRound if nothing of it is kept."""
    found = run.driver.timelines.find(run.driver.now(), round)
    return cast(Timeline, {"run": run.id.hex(), "name": run.manifest.name, **found})


def meters(run: Run, traffic: Traffic) -> RunMetrics:
    """The run's counters in `/metrics`; the rest is in its row."""
    last, log = run.commits.records[-1] if run.commits.records else None, run.member.log
    return {
        "run": run.id.hex(),
        **run.meters.as_json(),
        "participants": last.contributors if last is not None else None,
        "last_commit": run.commits.last_commit,
        "active": not run.is_finished,
        "lacks_quorum": log.is_member and not log.register.is_over and not log.can_decide(log.here),
        "bytes": {
            "control": asdict(traffic.control),
            "bulk": {"sent": traffic.bulk_sent, "received": traffic.bulk_received},
        },
        "bulk": by_path(traffic),
    }


def by_path(traffic: Traffic) -> dict[str, dict[str, int]]:
    """The bytes of payloads by path: {path: {sent, received}}."""
    return {path: asdict(count) for path, count in traffic.bulk.items()}


def is_active(run: Run) -> bool:
    """Whether there are rounds, or may be soon: the run is not over, and others are alive."""
    return not run.failure and not run.is_finished and bool(run.member.membership.alive())


def why_split(run: Run, evidence: Evidence) -> str:
    """Why the run seems to have come apart (node_state.py); `evidence` is from the directory. Empty if it has not."""
    membership, log = run.member.membership, run.member.log
    agrees = not run.manifest.method.has_replicas  # else no round is voted on, and roots differ
    voters = log.deciding if agrees else []
    missing = sorted(set(voters) - set(log.here))
    must_decide = agrees and log.is_member and not run.is_resting
    others = membership.alive() if agrees else []
    return node_state.why_split(
        node_state.SplitEvidence(
            voters=len(voters),
            absent=[peer for peer in missing if not _is_up(run, peer)],
            voteless=[peer for peer in missing if _is_up(run, peer)],
            has_quorum=not must_decide or log.can_decide(log.here),
            group=run.commits.group,
            lost=membership.lost_since(run.driver.now() - node_state.LOSS_WINDOW),
            elsewhere=evidence.elsewhere,
            apart=evidence.apart if agrees else (),
            own=run.member.status,
            others=[(peer, status) for peer in others if (status := membership.status(peer)) is not None],
        )
    )


def day_cost(runs: Iterable[Run]) -> answers.Traffic | None:
    """About how many bytes of payloads a day of these runs takes at their present pace; None if no pace is known."""
    paced = [run for run in runs if run.commits.pace and is_active(run)]
    sent = received = 0.0
    for run in paced:
        needs = requirements(run.manifest, len(run.member.membership.alive()) + 1)
        sent, received = sent + DAY / run.commits.pace * needs.sent, received + DAY / run.commits.pace * needs.received
    return {"sent": round(sent), "received": round(received)} if paced else None


def all_splits(runs: Iterable[tuple[Run, Evidence]]) -> str | None:
    """The evidence of each unfinished run that has come apart, in words; None if none has."""
    unfinished = [(run, evidence) for run, evidence in runs if not run.is_finished]
    found = [f"{run.manifest.name}: {why}" for run, evidence in unfinished if (why := why_split(run, evidence))]
    return ". ".join(found) or None


def _phase(status: RunStatus, last: int | None) -> str:
    """A member's phase; "finished" after the last round, whatever the status says."""
    return "finished" if last is not None and status.round >= last else status.phase


def _member(peer: PeerId, status: RunStatus, last: int | None, voters: Sequence[PeerId]) -> dict[str, Any]:
    return {
        "peer": peer,
        "votes": peer in voters,
        "round": status.round,
        "digest": status.history.hex(),
        "root": status.root.hex(),
        "phase": _phase(status, last),
        "step": status.step,
        "loss": status.loss,
        "trains": status.trains,
        "reachability": status.reachability,
    }
