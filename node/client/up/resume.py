"""Going on from an earlier play: its peers, their keys and checkpoints, and the round to go on from.

The peers are those of the earlier play, with their keys, so that seats and data lanes follow in the same order. The
round is the newest of which at least half of its members hold an undamaged checkpoint; peers without one download the
state like any newcomer. The earlier folder is only read.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from shoal.node.base.home import Home
from shoal.node.base.options import UsageError
from shoal.node.manifest.manifest import Manifest
from shoal.node.training.checkpoint.about import About
from shoal.node.training.checkpoint.lineage import origin_of
from shoal.node.training.checkpoint.scan import FoundCheckpoint, find

FindDamage = Callable[[Sequence[Path]], Awaitable[Mapping[str, str]]]
"""Reads checkpoints through: path -> problem, for the damaged ones."""


@dataclass(frozen=True, slots=True)
class Resumption:
    """The checkpoints of one round of an earlier play, from which a play goes on."""

    folder: Path  # the earlier --out
    peers: tuple[str, ...]  # those with a checkpoint first
    checkpoints: Mapping[str, Path]  # by peer
    about: About  # of one of them

    @property
    def round(self) -> int:
        """The last round that was committed."""
        return self.about.round

    def manifest(self, last: int) -> Manifest:
        """The earlier manifest, going on to round `last`."""
        earlier = self.about.decoded_manifest()
        if last <= self.round:
            raise UsageError(
                f"--rounds {last}: {self.folder} has come to round {self.round}; name a later last round",
                code="bad-value",
            )
        rounds = earlier.rounds.model_copy(update={"last": last, "start_members": len(self.peers)})
        return earlier.model_copy(update={"rounds": rounds, "origin": origin_of(self.about)})

    def hand_key(self, peer: str, home: Home) -> None:
        """Copy the earlier key of `peer` to its new home."""
        home.create()
        shutil.copy2(_home(self.folder, peer).identity_key, home.identity_key)


def survey(folder: Path) -> dict[str, list[FoundCheckpoint]]:
    """The peers of an earlier play with the checkpoints found there, unverified; UsageError for another folder."""
    names = (path.name for path in (folder / "peers").glob("peer-*"))
    peers = sorted((name for name in names if _home(folder, name).identity_key.is_file()), key=_number)
    if not peers:
        raise UsageError(
            f"--resume {folder} is not the folder of an earlier `shoal up`: no peer's key is in it",
            code="checkpoint-missing",
        )
    return {peer: find(_home(folder, peer).root) for peer in peers}


async def choose(folder: Path, find_damage: FindDamage, say: Callable[[str], None]) -> Resumption:
    """The newest round of which enough peers hold an undamaged checkpoint; UsageError if there is none."""
    found = survey(folder)
    for each in (each for held in found.values() for each in held if each.about is None):
        say(f"a damaged checkpoint is passed over: {each.problem}")
    for point in sorted({_point(each) for held in found.values() for each in held if each.about}, reverse=True):
        held = {peer: each for peer, all in found.items() for each in all if _point(each) == point}
        damaged = await find_damage([each.path for each in held.values()])
        for problem in damaged.values():
            say(f"a damaged checkpoint is passed over: {problem}")
        whole = {peer: each for peer, each in held.items() if str(each.path) not in damaged}
        if (chosen := _resumption(folder, tuple(found), whole)) is not None:
            return chosen
    raise UsageError(
        f"--resume {folder}: of no round do enough of its {len(found)} peers hold a whole checkpoint",
        code="checkpoint-missing",
    )


def _resumption(folder: Path, peers: tuple[str, ...], whole: Mapping[str, FoundCheckpoint]) -> Resumption | None:
    """The resumption from these checkpoints of one round; None if fewer than half of its members hold one."""
    abouts = {peer: each.about for peer, each in whole.items() if each.about is not None}
    if not abouts:
        return None
    about = next(iter(abouts.values()))
    if 2 * len(abouts) < len(about.members):
        return None
    order = (*abouts, *(peer for peer in peers if peer not in abouts))
    return Resumption(folder, order, {peer: whole[peer].path for peer in abouts}, about)


def _home(folder: Path, peer: str) -> Home:
    return Home(folder / "peers" / peer / "home")


def _point(found: FoundCheckpoint) -> tuple[int, str]:
    """The checkpoint's round, and its history digest."""
    return (found.about.round, found.about.history) if found.about else (0, "")


def _number(peer: str) -> int:
    digits = re.search(r"\d+$", peer)
    return int(digits.group()) if digits else 0
