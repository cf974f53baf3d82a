"""A run that is entered again goes on from its rest, unless that belongs to another state."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import cast

import pytest

from shoal.node.run.agreed_run import AgreedRun
from shoal.node.run.resting import Rested, load_rest, save_rest
from shoal.node.run.settings import RunSettings
from shoal.node.training.checkpoint.keep import Keeping
from shoal.node.training.state.outer import OuterState
from shoal.protocol.base.ids import Digest, PeerId, digest
from shoal.protocol.net.peers.network import Network
from tests.simulation.signing import FakeSigner
from tests.unit.checkpoint_kit import MANIFEST, ME, about, moments, state
from tests.unit.rounds_kit import ROUND
from tests.unit.test_rest import REST


def entered(home: Path, rested: Rested | None) -> AgreedRun:
    settings = RunSettings(home, 1, (), False, Keeping(), None)
    author, network = PeerId("author"), cast(Network, None)
    return AgreedRun(MANIFEST, author, b"", FakeSigner(ME), network, settings, None, rested)


def of_the_seed(root: Digest) -> Rested:
    return Rested(dataclasses.replace(REST, round=0, root=root), None)


@pytest.mark.asyncio
async def test_it_goes_on_from_the_state_that_was_kept(tmp_path: Path) -> None:
    held, folder = state(ROUND), tmp_path / MANIFEST.run_id.hex()
    folder.mkdir()
    kept = dataclasses.replace(REST, round=ROUND, root=held.current.root, decisions=(), draft=())
    save_rest(folder, kept, about(held), held.current, moments(held))
    run = entered(folder, load_rest(folder))
    assert run.rest == kept
    assert (run.outer.root, run.outer.committed.current.round) == (held.current.root, ROUND)
    assert run.samples == about(held).samples


@pytest.mark.asyncio
async def test_a_state_that_the_seed_does_not_give_any_more_is_not_gone_on_from(tmp_path: Path) -> None:
    seeded = OuterState(MANIFEST).root
    sound, stale = of_the_seed(seeded), of_the_seed(digest("what another torch made of the seed"))
    assert entered(tmp_path, sound).rest is sound.rest
    passed_over = entered(tmp_path, stale)
    assert passed_over.rest is None
    assert passed_over.outer.root == seeded
