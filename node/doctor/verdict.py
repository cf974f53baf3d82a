"""What is wrong between us and a peer, whose side it is on, and what to do: from what was seen and tried. Pure.

Codes and sides are for programs, and keep their meaning. `side` is "ours", "theirs", "both", "network" (between), or
"nobody" where nothing is wrong.

    direct, punched                                    all is well
    relayed-symmetric-{here,there,both}, relayed-failed, relayed-untried, relayed-early
                                                       slow, as all goes by a relay
    itself, no-address, unresolved, unreachable, refused, reset, silent, other-identity, too-often,
    failed                                             not reached
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shoal.dht.scope import Scope, scope_of
from shoal.node.peers.forwarding import ports_to_forward
from shoal.protocol.account import Account
from shoal.protocol.ids import short
from shoal.protocol.journal import OK, Step, Way
from shoal.protocol.messages.doctor import Seen

SLOW = "a relay carries at most 17 Mbit/s for each peer, and control traffic first of all"
FORWARD = "forward {ports} to {machine} in its router, or switch UPnP on there"
WORST_FIRST = (
    "itself",
    "other-identity",
    "refused",
    "reset",
    "silent",
    "failed",
    "too-often",
    "unreachable",
    "unresolved",
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """One sentence, and one with what to do; empty if there is nothing to do."""

    code: str
    side: str
    sentence: str
    advice: str = ""


def of_connection(account: Account, now: float, nat: str, seen: Seen | None, ports: str) -> Verdict:
    """Of a peer that we are connected with; `nat` is what our router does, `seen` the peer's own view."""
    name, reason = short(account.peer), account.reason(now)
    if account.path != "relayed":
        code = "punched" if account.path == "punched" else "direct"
        return Verdict(code, "nobody", f"the connection with {name} is as short as can be: {reason.words}.")
    codes = {step.code for step in account.steps if step.way is Way.MEET}
    here = nat == "symmetric" or bool(codes & {"no-place-here", "no-place-both"})
    there = bool(codes & {"no-place-there", "no-place-both"}) if seen is None else seen.nat == "symmetric"
    if here or there:
        return _symmetric(account, here, there, ports)
    if reason.code == "relay-failed":
        sentence = f"all goes by the relay {short(account.relay or '')}, as {name} and this node have not met: {SLOW}."
        why = "a firewall that lets no answers in, or a carrier's second router, is the usual cause"
        return Verdict("relayed-failed", "network", sentence, f"It is tried again by itself; {why}.")
    if reason.code == "relay-early":
        sentence = f"all goes by the relay {short(account.relay or '')}, as it is not known yet where to meet: {SLOW}."
        return Verdict("relayed-early", "nobody", sentence, "It is tried again by itself; ask again in some seconds.")
    sentence = f"all goes by the relay {short(account.relay or '')}, and no direct way was tried yet: {SLOW}."
    return Verdict("relayed-untried", "nobody", sentence, "Ask again in some seconds.")


def _symmetric(account: Account, here: bool, there: bool, ports: str) -> Verdict:
    side, whose = ("both", "both routers give") if here and there else ("theirs", "its router gives")
    if here and not there:
        side, whose = "ours", "this node's router gives"
    code = f"relayed-symmetric-{ {'both': 'both', 'theirs': 'there', 'ours': 'here'}[side] }"
    why = f"{whose} each destination another port, so nobody can know where to meet"
    sentence = f"all goes by the relay {short(account.relay or '')}, as {why}: {SLOW}."
    machine = "this machine" if side == "ours" else short(account.peer) if side == "theirs" else "either machine"
    own = ports if side == "ours" else f"{ports_to_forward()} (or those that `shoal status` shows there)"
    return Verdict(code, side, sentence, f"To have a direct way, {FORWARD.format(ports=own, machine=machine)}.")


def of_failure(name: str, steps: Sequence[Step], is_alone: bool) -> Verdict:
    """Of a peer that was not reached; `steps` are what was tried just now, `is_alone`: we are connected with nobody.

    What is in a local network says little of a peer that may be elsewhere: it decides where nothing else was tried.
    """
    failed = [step for step in steps if step.code not in (OK, "overtaken")]
    far = [step for step in failed if scope_of(step.where) not in (Scope.LOOPBACK, Scope.LAN)]
    by_code = {step.code if step.code in WORST_FIRST else "failed": step for step in far or failed}
    code = next((code for code in WORST_FIRST if code in by_code), None)
    if code is None:
        return Verdict(
            "no-address",
            "ours",
            f"nobody has told this node where {name} is.",
            "Give its address, which `shoal status` there prints: `shoal doctor /ip4/.../tcp/4101/p2p/...`.",
        )
    step = by_code[code]
    if is_alone and code in ("silent", "unreachable", "unresolved"):
        sentence = f"{_what(name, step)}, and this node is connected with nobody else either."
        return Verdict(code, "ours", sentence, "Check this machine's network first, then the address.")
    side, advice = _remedy(name, step)
    return Verdict(code, side, f"{_what(name, step)}.", advice)


def _what(name: str, step: Step) -> str:
    at = step.where
    return {
        "itself": f"at {at} answers this node itself",
        "other-identity": f"at {at} answers another node, not {name}: {step.words}",
        "refused": f"the machine at {at} is there, and nothing listens on that port",
        "reset": f"something at {at} takes connections and cuts them off",
        "silent": f"nothing answers at {at}",
        "unreachable": f"this machine has no way to {at} ({step.words})",
        "unresolved": step.words,
    }.get(step.code, f"{at} does not lead to {name}: {step.words}")


def _remedy(name: str, step: Step) -> tuple[str, str]:
    """Whose side it is on, and what to do."""
    if step.code == "silent" and step.way is Way.DIAL and scope_of(step.where) is Scope.LAN:
        return "network", f"That is an address of a local network, good only inside it: ask {name} for another one."
    return {
        "itself": ("ours", "Give the address of another one."),
        "other-identity": ("theirs", f"Ask {name} where it is now (`shoal status` there), and whether its key is new."),
        "refused": ("theirs", "Start the node there, or take the address that `shoal status` prints there."),
        "reset": ("theirs", "Check that a Shoal node, and no other program, listens there."),
        "silent": (
            "theirs",
            f"Check that the machine is on; there, forward {ports_to_forward()} to it, or connect it with any public "
            "node, and it has relays.",
        ),
        "unreachable": ("ours", "Check this machine's network, and whether it has that version of IP."),
        "unresolved": ("ours", "Check the spelling and this machine's DNS, or give a numerical address."),
    }.get(step.code, ("network", "Try again; if it stays, the log of either node may say more (`shoal logs`)."))
