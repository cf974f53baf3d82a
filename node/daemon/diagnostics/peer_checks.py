"""What is wrong between us and one peer, on whose side, and what to do: decided from what was seen and tried. Pure.

Codes and sides are for programs, and keep their meaning. `side` is "ours", "theirs", "both", "network" (between the
two), or "nobody" if nothing is wrong.

    direct, punched                                    all is well
    relayed-symmetric-{here,there,both}, relayed-failed, relayed-untried, relayed-early
                                                       slow, because all traffic takes a relay
    itself, no-address, unresolved, unreachable, refused, reset, silent, other-identity, too-often,
    failed                                             not reached
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shoal.dht.scope import Scope, scope_of
from shoal.node.peers.gateway.router import ports_to_forward
from shoal.protocol.base.ids import short
from shoal.protocol.messages.doctor import Seen
from shoal.protocol.net.measure.journal import OK, Step, Way
from shoal.protocol.net.measure.link import LinkReport

SLOW = "a relay carries at most 17 Mbit/s for each peer, and control traffic first of all"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is wrong, in a sentence, and advice; empty if there is nothing to do."""

    code: str
    side: str
    sentence: str
    advice: str = ""


def of_connection(report: LinkReport, now: float, nat: str, seen: Seen | None, ports: str) -> Verdict:
    """The verdict on a connected peer; `nat` is what our router does, `seen` the peer's view of us."""
    name, reason = short(report.peer), report.reason(now)
    if report.path != "relayed":
        is_punched = report.path == "punched"
        words = f"the connection with {name} is as short as can be: {reason.words}."
        return Verdict("punched" if is_punched else "direct", "nobody", words)
    codes = {step.code for step in report.steps if step.way is Way.MEET}
    here = nat == "symmetric" or bool(codes & {"no-place-here", "no-place-both"})
    there = bool(codes & {"no-place-there", "no-place-both"}) if seen is None else seen.nat == "symmetric"
    if here or there:
        return _symmetric(report, here, there, ports)
    if reason.code == "relay-failed":
        why = "a firewall that lets no answers in, or a carrier's second router, is the usual cause"
        advice = f"It is tried again by itself; {why}."
        return _relayed(report, "relayed-failed", "network", f"as {name} and this node have not met", advice)
    if reason.code == "relay-early":
        advice = "It is tried again by itself; ask again in some seconds."
        return _relayed(report, "relayed-early", "nobody", "as it is not known yet where to meet", advice)
    return _relayed(
        report, "relayed-untried", "nobody", "and no direct way was tried yet", "Ask again in some seconds."
    )


def _symmetric(report: LinkReport, here: bool, there: bool, ports: str) -> Verdict:
    alone = "relayed-symmetric-here" if here else "relayed-symmetric-there"
    code = "relayed-symmetric-both" if here and there else alone
    side, whose, machine = {
        "relayed-symmetric-here": ("ours", "this node's router gives", "this machine"),
        "relayed-symmetric-there": ("theirs", "its router gives", short(report.peer)),
        "relayed-symmetric-both": ("both", "both routers give", "either machine"),
    }[code]
    why = f"as {whose} each destination another port, so nobody can know where to meet"
    own = ports if side == "ours" else f"{ports_to_forward()} (or those that `shoal status` shows there)"
    advice = f"To have a direct way, forward {own} to {machine} in its router, or switch UPnP on there."
    return _relayed(report, code, side, why, advice)


def _relayed(report: LinkReport, code: str, side: str, why: str, advice: str) -> Verdict:
    sentence = f"all goes by the relay {short(report.relay or '')}, {why}: {SLOW}."
    return Verdict(code, side, sentence, advice)


@dataclass(frozen=True, slots=True)
class Failure:
    """The verdict on a peer that was not reached, by the code of its worst step.

    {at} is the address that was tried, {name} the peer, {words} the outcome, {ports} the ports that a node listens on.
    """

    code: str
    side: str
    sentence: str
    advice: str


UNEXPLAINED = "{at} does not lead to {name}: {words}"
TRY_AGAIN = "Try again; if it stays, the log of either node may say more (`shoal logs`)."
FAILURES = (  # the worst first
    Failure("itself", "ours", "at {at} answers this node itself", "Give the address of another one."),
    Failure(
        "other-identity",
        "theirs",
        "at {at} answers another node, not {name}: {words}",
        "Ask {name} where it is now (`shoal status` there), and whether its key is new.",
    ),
    Failure(
        "refused",
        "theirs",
        "the machine at {at} is there, and nothing listens on that port",
        "Start the node there, or take the address that `shoal status` prints there.",
    ),
    Failure(
        "reset",
        "theirs",
        "something at {at} takes connections and cuts them off",
        "Check that a Shoal node, and no other program, listens there.",
    ),
    Failure(
        "silent",
        "theirs",
        "nothing answers at {at}",
        "Check that the machine is on; there, forward {ports} to it, or connect it with any public node, and it has "
        "relays.",
    ),
    Failure("failed", "network", UNEXPLAINED, TRY_AGAIN),
    Failure("too-often", "network", UNEXPLAINED, TRY_AGAIN),
    Failure(
        "unreachable",
        "ours",
        "this machine has no way to {at} ({words})",
        "Check this machine's network, and whether it has that version of IP.",
    ),
    Failure(
        "unresolved",
        "ours",
        "{words}",
        "Check the spelling and this machine's DNS, or give a numerical address.",
    ),
)
KNOWN = {each.code for each in FAILURES}
UNHEARD = ("silent", "unreachable", "unresolved")  # codes of steps in which nobody answered


def of_failure(name: str, steps: Sequence[Step], is_alone: bool) -> Verdict:
    """The verdict on a peer that was not reached by these `steps`; `is_alone`: we are connected with nobody.

    Addresses of local networks count only if no others were tried: the peer may be elsewhere.
    """
    failed = [step for step in steps if step.code not in (OK, "overtaken")]
    far = [step for step in failed if scope_of(step.where) not in (Scope.LOOPBACK, Scope.LAN)]
    by_code = {step.code if step.code in KNOWN else "failed": step for step in far or failed}
    failure = next((each for each in FAILURES if each.code in by_code), None)
    if failure is None:
        return Verdict(
            "no-address",
            "ours",
            f"nobody has told this node where {name} is.",
            "Give its address, which `shoal status` there prints: `shoal doctor /ip4/.../tcp/4101/p2p/...`.",
        )
    step = by_code[failure.code]
    known = {"at": step.where, "name": name, "words": step.words, "ports": ports_to_forward()}
    what = failure.sentence.format(**known)
    if is_alone and failure.code in UNHEARD:
        sentence = f"{what}, and this node is connected with nobody else either."
        return Verdict(failure.code, "ours", sentence, "Check this machine's network first, then the address.")
    if failure.code == "silent" and step.way is Way.DIAL and scope_of(step.where) is Scope.LAN:
        advice = f"That is an address of a local network, good only inside it: ask {name} for another one."
        return Verdict(failure.code, "network", f"{what}.", advice)
    return Verdict(failure.code, failure.side, f"{what}.", failure.advice.format(**known))
