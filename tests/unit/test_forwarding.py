"""What people are told to forward."""

from __future__ import annotations

from shoal.node.peers.forwarding import port_in, ports_to_forward


def test_both_ports_are_named() -> None:
    assert ports_to_forward() == "TCP 4101 and 4102"
    assert ports_to_forward(4201) == "TCP 4201 and 4202"


def test_a_port_is_that_of_the_first_address_that_has_one() -> None:
    assert port_in(("/dns4/name", "/ip4/192.168.1.2/tcp/4201", "/ip4/127.0.0.1/tcp/4301")) == 4201
    assert port_in(()) == 4101
