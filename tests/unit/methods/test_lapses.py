"""What every method does when a round brings no answer, and with what a newcomer begins."""

from __future__ import annotations

import pytest
import torch

from shoal.node.training.methods.ddp import DDP
from shoal.node.training.methods.diloco import DiLoCo
from shoal.node.training.methods.gossip import Gossip
from shoal.node.training.methods.method import Method
from shoal.node.training.methods.noloco import NoLoCo
from shoal.node.training.methods.sparseloco import SparseLoCo
from shoal.protocol.tensors.compression import codec

SYNCHRONOUS: list[Method] = [
    DiLoCo(2, 0.7, 0.9),
    SparseLoCo(2, 1.0, 0.95, codec("topk")),
    DDP(lambda _: 0.1, (0.9, 0.95), 1e-8, 0.1),
]
REPLICAS: list[Method] = [
    NoLoCo(2, 0.5, 0.7, 0.7),
    NoLoCo(2, 0.5, 0.7, 0.7, 1),
    Gossip(2),
    Gossip(2, delay=1),
]


def named(method: Method) -> str:
    return type(method).__name__


@pytest.mark.parametrize("method", SYNCHRONOUS, ids=named)
def test_without_an_answer_all_go_on_from_the_agreed_parameters(method: Method) -> None:
    agreed, private = method.begin(torch.arange(4.0))
    trained = torch.full((4,), 9.0)
    theta, after = method.lapse(0, trained, agreed, private, 3)
    assert torch.equal(theta, torch.arange(4.0))
    assert after is private


@pytest.mark.parametrize("method", REPLICAS, ids=named)
def test_without_a_partner_a_replica_trains_on(method: Method) -> None:
    agreed, private = method.begin(torch.arange(4.0))
    trained = torch.full((4,), 9.0)
    theta, after = method.lapse(0, trained, agreed, private, 3)
    assert theta is trained
    assert after is private


@pytest.mark.parametrize("method", [*SYNCHRONOUS, *REPLICAS], ids=named)
def test_who_joins_has_the_private_vectors_of_a_beginning(method: Method) -> None:
    agreed, private = method.begin(torch.arange(4.0))
    joined = method.join(agreed)
    assert joined.keys() == private.keys()
    assert all(torch.equal(joined[name], private[name]) for name in private)
