"""Judges a node's status: in a sentence, with what to do about it, and as an exit code for health checks.

The exit code is that of `shoal status --exit-code`. Worst first; everything else is healthy, also a bootstrap node that
is in no run:

    FAILED_RUN  a run has failed on this node, or its worker has for good, or the node is not (yet) in a run that it
                should be in
    SPLIT       too few of a run's members are reachable
    ALONE       a run that this node should be in has other members, and none of them answers

The creator of a run whose first round is not committed is waiting, not alone, unless it lacks the state to begin with;
so is a node that was stopped with all others of its run and is the first to be back. A node that pauses because its
owner's daily volume is used up is healthy.
"""

from __future__ import annotations

from collections.abc import Sequence

from shoal.node.api.answers import Answer, RunRow, Status
from shoal.node.base.exits import Exit

WRONG = {
    "SOLO": "This node is alone: no other peer is reachable",
    "SPLIT": "The swarm is split",
}
AVERAGING = ("reducing", "deciding", "applying")
ADVICE = {
    "SOLO": "Start it with --bootstrap and the address of a running node, or another node with an address of this one.",
    "SPLIT": "Check this machine's network and theirs. The run goes on by itself when they are back; if both "
    "parts went on meanwhile, only the work of one of them counts.",
}
SEARCHING = "It looks for the others by itself: check that they run, and this machine's network."  # in place of SOLO's
SEARCHING_OF = "It looks for the others of {} by itself: check that they run, and this machine's network."
NAMED = 6  # peers, in one sentence


def label(run: RunRow) -> str:
    """A run's name or, if that is not known, the beginning of its id."""
    return str(run.get("name") or run["run"][:8])


def is_first_back(status: Status) -> bool:
    """Whether the node is the first to be back after all nodes of its runs had stopped: nothing is wrong then."""
    runs = status.get("runs", [])
    waits = status.get("waits") or not status.get("obstacle")
    return bool(waits) and status.get("state") == "SOLO" and bool(runs) and all(run.get("is_resting") for run in runs)


def is_over(status: Status) -> bool:
    """Whether all runs of the node are finished: then it needs no other member, and only keeps their results."""
    runs = status.get("runs", [])
    waits = status.get("waits") or not status.get("obstacle")
    return bool(waits) and bool(runs) and all(run.get("phase") == "finished" for run in runs)


def remedy(status: Status) -> str | None:
    """What to do about a node's state; None if nothing is wrong, or something else says it.

    Only a node that is in no run is told to start with an address: in a run it knows those of others, or they come by
    its link.
    """
    is_calm = status.get("paused") or status.get("obstacle") or is_first_back(status) or is_over(status)
    if is_calm:
        return None
    if status.get("state") == "SOLO" and lonely_runs(status):
        return SEARCHING_OF.format(" and ".join(sought)) if (sought := sought_runs(status)) else None
    if status.get("state") == "SOLO" and status.get("runs"):
        return SEARCHING
    return ADVICE.get(status.get("state", ""))


def lonely_runs(status: Status) -> list[RunRow]:
    """The runs whose link is to be sent to others."""
    return [] if status.get("paused") else [run for run in status.get("runs", []) if run.get("link")]


def sought_runs(status: Status) -> list[str]:
    """The names of the other runs that need members, which the node looks for."""
    lonely = lonely_runs(status)
    rest = (run for run in status.get("runs", []) if run not in lonely)
    return [label(run) for run in rest if run.get("phase") not in ("finished", "failed")]


def invitations(status: Status) -> str | None:
    """What to send to others, for each run in which nobody else is; None if there are none."""
    return "; ".join(f"{absence(run)} {join_command(run)}" for run in lonely_runs(status)) or None


def advice(status: Status) -> str | None:
    """What to do, about the node and about the runs in which it is alone, in words; None if nothing."""
    return " ".join(filter(None, (remedy(status), invitations(status)))) or None


def absence(run: RunRow) -> str:
    """That nobody else is in a run, and who has left it; ends where the command follows by which others join."""
    left = run.get("left") or []
    if not left:
        return f"Nobody else is in {label(run)}. Send this to whoever is to join:"
    names = f"{', '.join(peer[-6:] for peer in left[:NAMED])}{' and others' if len(left) > NAMED else ''}"
    gone, back = (f"{names} has left", "It is") if len(left) == 1 else (f"{names} have left", "Each is")
    back = f"{back} back by itself once its node runs again, unless it has left for good"
    return f"Nobody else is in {label(run)}: {gone}. {back}. Somebody new joins by:"


def join_command(run: Answer) -> str:
    """The command by which others join a run, from any answer that has its link."""
    return f"shoal run join {run['link']}"


def headline(status: Status) -> str:
    """One sentence: what the node is doing, or what keeps it from what it should do."""
    if paused := status.get("paused"):
        return f"{str(paused)[:1].upper()}{str(paused)[1:]}."
    obstacle, state, runs = status.get("obstacle"), str(status.get("state")), status.get("runs", [])
    if is_over(status):
        done = " and ".join(f"{label(run)} after round {run['round']}" for run in runs)
        return f"Finished {done}, and keeps the result."
    if is_first_back(status):
        kept = " and ".join(f"{label(run)} after round {run['round']}" for run in runs)
        return f"Keeps {kept} until others are back{f' ({obstacle})' if obstacle else ''}."
    if obstacle:
        return str(obstacle)
    if state == "SOLO" and (lonely := lonely_runs(status)):
        if not (sought := sought_runs(status)):
            return "This node is alone."
        alone = " and ".join(map(label, lonely))
        return f"This node is alone: nobody else is in {alone}, and nobody of {' and '.join(sought)} is reachable."
    if state in WRONG:
        why = status.get("evidence")
        return f"{WRONG[state]}: {why}." if why else f"{WRONG[state]}."
    if not runs:
        return f"Connected {_with_peers(status)}, and in no run."
    if state == "IN-ROUND" and (averaging := _rounds(runs, AVERAGING)):
        return f"Averaging {averaging} with the others."
    if state == "IN-ROUND" and (ready := _rounds(runs, ("matching",))):
        return f"Ready for {ready}, waiting for the others."
    return f"Connected {_with_peers(status)}: {', '.join(map(_doing, _telling(runs)))}."


def summary(status: Status) -> str:
    """The status in a few words, for the service manager."""
    runs = [f"{label(run)} after round {run['round']}, {run['phase']}" for run in status["runs"]]
    return "; ".join([status["state"], *([status["obstacle"]] if status["obstacle"] else []), *(runs or ["in no run"])])


def _rounds(runs: Sequence[RunRow], phases: Sequence[str]) -> str:
    """The next round of each run that is in one of `phases`."""
    return " and ".join(f"round {run['round'] + 1} of {label(run)}" for run in runs if run.get("phase") in phases)


def _with_peers(status: Status) -> str:
    count = status.get("peers")
    return "with others" if count is None else f"with {count} {'peer' if count == 1 else 'peers'}"


def _telling(runs: Sequence[RunRow]) -> list[RunRow]:
    """The runs without families whose part is trained here in a run that is listed itself."""
    names = {label(run) for run in runs}
    return [run for run in runs if f"{label(run)}.{(run.get('experts') or {}).get('trains')}" not in names]


def _doing(run: RunRow) -> str:
    phase, name = run.get("phase"), label(run)
    if phase == "waiting":
        return f"waiting for a part of {name}"
    if phase == "failed":
        return f"{name} has failed on this node"
    if run.get("worker_failure"):
        return f"the worker of {name} has failed"
    if run.get("worker_lost"):
        return f"starting the worker of {name} again"
    if phase == "restoring":
        return f"entering {name} again"
    if phase == "paused":
        return f"{name} is paused"
    if phase == "finished":
        return f"{name} is finished"
    if phase == "exchanging":
        return f"exchanging with a partner in {name}"
    if phase == "syncing":
        return f"catching up with {name}"
    return f"training {name}" if run.get("trains", True) else f"keeping the state of {name}"


# -- health -------------------------------------------------------------------------------------------------


def verdict(status: Status) -> Exit:
    """The exit code for a status."""
    runs = status["runs"]
    if status.get("paused"):
        return Exit.OK
    if any(run.get("failure") or run.get("worker_failure") for run in runs):
        return Exit.FAILED_RUN
    if status["state"] == "SPLIT":
        return Exit.SPLIT
    solo = status["state"] == "SOLO"
    obstacle = status.get("obstacle") and not is_first_back(status) and not is_over(status)
    if (solo and obstacle) or any(_misses_others(run, solo) for run in runs):
        return Exit.ALONE
    not_yet = any(run.get("phase") == "restoring" for run in runs)
    return Exit.FAILED_RUN if not_yet or obstacle else Exit.OK


def _misses_others(run: RunRow, solo: bool) -> bool:
    """Whether the run has other members, and none is here: it has begun, or is not ours, or we lack its state."""
    if run["phase"] in ("finished", "restoring") or run.get("is_resting"):
        return False
    if run["phase"] == "syncing":
        return solo or run["members"] == 1
    return solo and (run["round"] >= (run["first_round"] or 0) or not run["is_creator"])
