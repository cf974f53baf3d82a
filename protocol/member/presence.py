"""What the members of both kinds of run do alike: one is there, and tells the others how it does."""

from __future__ import annotations

import dataclasses
import random
from abc import ABC, abstractmethod

from shoal.protocol.base.effects import Effect
from shoal.protocol.base.ids import NO_DIGEST, Digest, PeerId
from shoal.protocol.base.signing import Signer
from shoal.protocol.membership.membership import Membership
from shoal.protocol.messages.membership import RunStatus


class Presence(ABC):
    """One peer among the members of one run, with its own status: what Member and ReplicaMember are made of."""

    def __init__(
        self,
        me: PeerId,
        addresses: tuple[str, ...],
        standing: tuple[int, Digest, Digest] | None,
        signer: Signer,
        rng: random.Random,
        *,
        trains: bool,
    ) -> None:
        """`standing`: round, history and root of the state that is here; None before there is one."""
        round, history, root = standing or (0, NO_DIGEST, NO_DIGEST)
        self.me = me
        self._status = RunStatus(
            round=round,
            history=history,
            root=root,
            phase="syncing",
            step=0,
            samples=0,
            loss=None,
            trains=trains,
            up=0,
            down=0,
            reachability="unknown",
        )
        self.membership = Membership(me, addresses, self._status, signer, rng)

    def report(
        self,
        now: float,
        *,
        step: int,
        samples: int,
        loss: float | None,
        reachability: str,
        line: tuple[int, int],
    ) -> list[Effect]:
        """How the training goes, whether others can dial us, and our line's rates up and down; gossiped."""
        up, down = line
        self._status = dataclasses.replace(
            self._status, step=step, samples=samples, loss=loss, up=up, down=down, reachability=reachability
        )
        return self._digest(now, [])

    def link_lost(self, now: float, peer: PeerId) -> list[Effect]:
        """The connection with `peer` was closed."""
        return self._digest(now, self.membership.link_lost(now, peer))

    def link_up(self, now: float, peer: PeerId) -> list[Effect]:
        """There is a connection with `peer`."""
        return self._digest(now, self.membership.link_up(now, peer))

    @property
    def status(self) -> RunStatus:
        """Our own status, as the others see it."""
        return self._status

    @abstractmethod
    def _digest(self, now: float, effects: list[Effect]) -> list[Effect]:
        """Turn what one core tells into commands of another; then tell everybody where we stand."""
