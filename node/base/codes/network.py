"""The codes of what was tried towards a peer, and of what `shoal doctor` and `shoal netcheck` find."""

from __future__ import annotations

from collections.abc import Mapping

from shoal.node.base.codes.row import Fault, Row

YOU, MACHINE, PEER, NETWORK, SHOAL, NOBODY = Fault
PORTS = "Forward the node's ports in the router, or switch on UPnP there."
BY_ITSELF = "It is tried again by itself."

STEPS: Mapping[str, Row] = {
    "ok": Row(NOBODY, "It worked."),
    "refused": Row(PEER, "The machine is there, and nothing listens on that port.", "Start the node there."),
    "silent": Row(NETWORK, "Nobody answered in time.", "Check that the machine is on, and its router's ports."),
    "unreachable": Row(NETWORK, "There is no way to that address.", "Check this machine's network and version of IP."),
    "reset": Row(NETWORK, "The connection was cut.", "Check that a Shoal node listens there."),
    "failed": Row(NETWORK, "The network failed in another way, which the sentence names.", "Try again."),
    "itself": Row(YOU, "What was given is this node itself.", "Name another node, or give its address."),
    "other-identity": Row(YOU, "Another peer answers there.", "Take the address from `shoal status` on that node."),
    "unresolved": Row(YOU, "The name cannot be looked up.", "Check its spelling and this machine's DNS."),
    "overtaken": Row(NOBODY, "Another way was faster."),
    "too-often": Row(NETWORK, "So many dials failed there that the next waits.", BY_ITSELF),
    "no-place-here": Row(NETWORK, "Our router gives each destination another port.", PORTS),
    "no-place-there": Row(NETWORK, "Their router gives each destination another port.", PORTS),
    "no-place-both": Row(NETWORK, "Both routers give each destination another port.", PORTS),
    "no-place-yet": Row(NOBODY, "One of the two does not know yet where it can be met.", BY_ITSELF),
    "not-spoken": Row(PEER, "The peer does not speak that protocol.", "It may run another version of Shoal."),
    "lost": Row(NETWORK, "The connection was lost meanwhile.", BY_ITSELF),
    "full": Row(MACHINE, "This node has as many connections as fit.", "Raise `ulimit -n`."),
    "later": Row(NOBODY, "It was measured just now.", "Ask again in the time that is named."),
    "bad-token": Row(PEER, "A socket for payloads was opened with a wrong or old token.", BY_ITSELF),
    "other-certificate": Row(NETWORK, "At a socket for payloads somebody else answers.", BY_ITSELF),
    "run-unknown-there": Row(NOBODY, "The peer does not know yet that this node is in its run.", BY_ITSELF),
}

VERDICTS: Mapping[str, Row] = {
    "direct": Row(NOBODY, "The connection is as short as can be."),
    "punched": Row(NOBODY, "The connection is direct: both have dialled at the same moment."),
    "relayed-symmetric-here": Row(NETWORK, "A relay carries all, because of our router.", PORTS),
    "relayed-symmetric-there": Row(NETWORK, "A relay carries all, because of their router.", PORTS),
    "relayed-symmetric-both": Row(NETWORK, "A relay carries all, because of both routers.", PORTS),
    "relayed-failed": Row(NETWORK, "A relay carries all, as the two have not met.", BY_ITSELF),
    "relayed-early": Row(NOBODY, "A relay carries all, as it is not known yet where to meet.", BY_ITSELF),
    "relayed-untried": Row(NOBODY, "A relay carries all, as no direct way was tried yet.", BY_ITSELF),
    "no-address": Row(YOU, "Nobody has told this node where the peer is.", "Give its address."),
}

WAYS: Mapping[str, Row] = {
    "dialled": Row(NOBODY, "We dialled its own address."),
    "it-dialled": Row(NOBODY, "It dialled us."),
    "reversal": Row(NOBODY, "It called by a relay, and we dialled back."),
    "met": Row(NOBODY, "Both dialled at the same moment."),
    "relay": Row(NOBODY, "By a relay: no direct way was tried yet.", BY_ITSELF),
    "relay-failed": Row(NETWORK, "By a relay: all tries to meet failed.", BY_ITSELF),
    "relay-symmetric": Row(NETWORK, "By a relay: a router gives each destination another port.", PORTS),
    "relay-early": Row(NOBODY, "By a relay: it is not known yet where the two can meet.", BY_ITSELF),
    "none": Row(NETWORK, "There is no connection.", "`shoal doctor PEER` says why."),
}

FINDINGS: Mapping[str, Row] = {
    "NET-SOLO": Row(NETWORK, "No peer is connected.", "Do what the verdict says: send the run's link, or join one."),
    "NET-DIAL-OK": Row(NOBODY, "Others can dial this node."),
    "NET-DIAL-LOCAL": Row(NOBODY, "Others nearby can dial this node."),
    "NET-DIAL-NO": Row(NETWORK, "Others cannot dial this node.", PORTS),
    "NET-DIAL-UNKNOWN": Row(NOBODY, "Nobody has said yet whether others can dial this node.", "Ask again later."),
    "NET-NAT-NONE": Row(NOBODY, "No router translates this node's address."),
    "NET-NAT-FORWARDED": Row(NOBODY, "The router forwards this node's port."),
    "NET-NAT-FIREWALL": Row(NETWORK, "A firewall drops what comes in.", "Allow the node's ports in it."),
    "NET-NAT-KEEPING": Row(NOBODY, "The router keeps the port: this node can be met."),
    "NET-NAT-SYMMETRIC": Row(NETWORK, "The router gives each destination another port.", PORTS),
    "NET-NAT-LOCAL": Row(NOBODY, "Between this node and its peers no router was met."),
    "NET-NAT-UNKNOWN": Row(NOBODY, "Fewer than two relays have said where they see this node.", "Ask again later."),
    "NET-NAT-CARRIER": Row(NETWORK, "Another router is beyond this node's own.", "Ask the provider for IPv6."),
    "NET-PORTMAP-OK": Row(NOBODY, "The router forwards a port to this node."),
    "NET-PORTMAP-INSIDE": Row(NETWORK, "The router forwards a port that is not of the internet.", "See the finding."),
    "NET-PORTMAP-NONE": Row(NOBODY, "No router gives a port by itself.", PORTS),
    "NET-PORTMAP-UNTRIED": Row(NOBODY, "No router has been asked for a port."),
    "NET-RELAY-OK": Row(NOBODY, "Relays connect others with this node."),
    "NET-RELAY-LENT": Row(NOBODY, "This node is a relay for others."),
    "NET-RELAY-NONE": Row(NETWORK, "No relay connects others with this node.", "Have a public node join the run."),
    "NET-RELAY-UNNEEDED": Row(NOBODY, "This node needs no relay."),
    "NET-IPV6-OK": Row(NOBODY, "IPv6 works."),
    "NET-IPV6-SILENT": Row(
        NETWORK, "This machine has IPv6, but nobody answers by it.", "Have it mended, or turn it off."
    ),
    "NET-IPV6-UNTRIED": Row(NOBODY, "No peer with IPv6 was met."),
    "NET-IPV6-NONE": Row(NOBODY, "This machine has no IPv6."),
    "NET-CLOCK-OK": Row(NOBODY, "The clock is right."),
    "NET-CLOCK-OFF": Row(MACHINE, "The clock differs from the others'.", "Set it, best by NTP."),
    "NET-CLOCK-UNKNOWN": Row(NOBODY, "No peer has said what its clock shows."),
    "NET-MTU-OK": Row(NOBODY, "Large packets come through."),
    "NET-MTU-LOST": Row(NETWORK, "Large packets get lost.", "Lower the MTU of the interface, to 1280 say."),
    "NET-MTU-UNTRIED": Row(NOBODY, "No peer that this node has dialled was there to try large packets with."),
    "NET-LIMITS": Row(NOBODY, "The owner has limited this node's rates."),
}
