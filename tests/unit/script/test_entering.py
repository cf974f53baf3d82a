"""A script enters a run by invitation only with the module that the run is about."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn

from shoal.node.base.room import AvailableMemory, Memory
from shoal.node.client.script import api
from shoal.node.client.script.module import OwnModule
from shoal.node.manifest.fitting import check_fits
from shoal.node.manifest.manifest import parse_manifest
from shoal.protocol.base.errors import LocalError

RUN = "ab" * 32


class Entered(Exception):
    """The node was asked to."""


class Node:
    """The daemon that is asked."""

    def __init__(self, module: nn.Module) -> None:
        self.model = owned(module).spec().model_dump(mode="json")

    def status(self) -> dict[str, Any]:
        return {"runs": []}

    def preview_run(self, link: str) -> dict[str, Any]:
        return {"run": RUN, "manifest": {"name": "a", "model": self.model}}

    def join_run(self, link: str, train: bool) -> dict[str, Any]:
        raise Entered(link)


def owned(module: nn.Module) -> OwnModule:
    return OwnModule(module, torch.optim.SGD(module.parameters()))


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> api.Run:
    """A run of a module with 4 by 2 weights."""

    @contextmanager
    def at_hand() -> Iterator[Node]:
        yield Node(nn.Linear(4, 2))

    monkeypatch.setattr(api, "ensure_node", at_hand)
    return api.join(RUN)


def test_a_run_is_entered_with_its_module_only(run: api.Run) -> None:
    other, same = nn.Linear(4, 3), nn.Linear(4, 2)
    with pytest.raises(LocalError, match="this module is not the run's"):
        run.wrap(torch.optim.SGD(other.parameters()), other)
    with pytest.raises(Entered, match=RUN):
        run.wrap(torch.optim.SGD(same.parameters()), same)


def test_what_is_no_link_is_refused_in_words() -> None:
    given: list[Any] = [None, b"shoal2", 1]
    for link in given:
        with pytest.raises(LocalError, match="`join` takes a run's link, id or name, and not"):
            api.join(link)


def test_a_run_that_is_too_large_for_the_machine_is_refused() -> None:
    manifest = parse_manifest('name = "a"')
    check_fits(manifest, AvailableMemory(Memory(1 << 40, 1 << 40)))
    with pytest.raises(LocalError, match=r"This machine has 1\.0 MiB"):
        check_fits(manifest, AvailableMemory(Memory(1 << 20, 1 << 20)))
