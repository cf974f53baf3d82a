"""What a router or a firewall lets through, how it translates addresses, and what it counts.

- A gate stands on a machine between its interface `wan` and the rest: what goes out passes, what comes back for it
  passes, and strangers (whatever nobody asked for) meet the policy. The rules are nftables', as in home routers.
- The counters are read from the kernel, so that a test can tell from outside how two machines really talked.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from tests.netlab.namespaces import Namespace, run


@dataclass(frozen=True)
class Policy:
    """What one kind of router or firewall does."""

    name: str
    translation: str = ""  # nftables' statement for what goes out; none for machines with a public address
    strangers: str = "drop"  # accept, drop (no answer), or reject (RST, or ICMP port unreachable)
    forgets: int = 0  # seconds until a mapping without traffic is forgotten; 0: as long as Linux keeps it

    def __str__(self) -> str:
        return self.name


PUBLIC = Policy("public", strangers="accept")
BLOCKED = Policy("blocked")
KEEPS_PORTS = Policy("keeps ports, drops", "masquerade")
KEEPS_PORTS_REJECTS = Policy("keeps ports, rejects", "masquerade", "reject")
SYMMETRIC = Policy("symmetric, drops", "masquerade random,fully-random")  # a new port for each destination

STRANGERS = {
    "accept": "counter name accepted return",
    "drop": "counter name refused drop",
    "reject": "counter name refused meta l4proto tcp reject with tcp reset\n reject with icmpx port-unreachable",
}
RULES = """
table inet gate {{
    counter sent {{}}
    counter received {{}}
    counter accepted {{}}
    counter refused {{}}
    set to {{ type ipv4_addr; size 65535; flags dynamic; counter; }}
    set from {{ type ipv4_addr; size 65535; flags dynamic; counter; }}
    chain out {{
        counter name sent
        update @to {{ ip daddr counter }}
        accept
    }}
    chain in {{
        ct state invalid drop
        ct state new jump strangers
        counter name received
        update @from {{ ip saddr counter }}
        accept
    }}
    chain strangers {{
        ct status dnat counter name accepted return
        {strangers}
    }}
    chain input {{
        type filter hook input priority filter; policy accept;
        iifname "wan" jump in
    }}
    chain output {{
        type filter hook output priority filter; policy accept;
        oifname "wan" jump out
    }}
    chain forward {{
        type filter hook forward priority filter; policy drop;
        oifname "wan" jump out
        iifname "wan" jump in
    }}
    chain open {{
        type nat hook prerouting priority dstnat; policy accept;
    }}
    chain translate {{
        type nat hook postrouting priority srcnat; policy accept;
        oifname "wan" meta nfproto ipv4 {translation}
    }}
}}
"""
TIMEOUTS = ("udp_timeout", "udp_timeout_stream", "tcp_timeout_established")


@dataclass(frozen=True)
class Count:
    """Packets and bytes that a rule saw."""

    packets: int = 0
    bytes: int = 0


class Gate:
    """A policy in force on a machine."""

    def __init__(self, machine: Namespace, policy: Policy) -> None:
        self._machine, self.policy = machine, policy
        rules = RULES.format(strangers=STRANGERS[policy.strangers], translation=policy.translation or "accept")
        machine.on(lambda: run("nft", "-f", "-", words=rules))
        for timeout in TIMEOUTS if policy.forgets else ():
            machine.set(f"net/netfilter/nf_conntrack_{timeout}", policy.forgets)

    def open(self, port: int, goal: str) -> None:
        """Strangers that come to this TCP port are let in, and led to `goal`, as people set their routers to do."""
        rule = f'add rule inet gate open iifname "wan" tcp dport {port} dnat ip to {goal}'
        self._machine.on(lambda: run("nft", rule))

    def count(self, what: str) -> Count:
        """How much was `sent` and `received`, `accepted` of strangers (their first packets only) or `refused`."""
        return next(count_of(each) for each in self._read("counter", what) if each)

    def sent_to(self, address: str) -> Count:
        """Packets that went out to this address, as they were named beyond the gate."""
        return self._set("to").get(address, Count())

    def received_from(self, address: str) -> Count:
        """Packets from this address that were let in."""
        return self._set("from").get(address, Count())

    def _set(self, name: str) -> dict[str, Count]:
        found = [element["elem"] for read in self._read("set", name) for element in read.get("elem", ())]
        return {element["val"]: count_of(element["counter"]) for element in found}

    def _read(self, kind: str, name: str) -> list[dict[str, Any]]:
        words = self._machine.on(lambda: run("nft", "-j", "list", kind, "inet", "gate", name))
        return [each[kind] for each in json.loads(words)["nftables"] if kind in each]


def count_of(found: dict[str, int]) -> Count:
    """A counter as nft prints it."""
    return Count(found["packets"], found["bytes"])
