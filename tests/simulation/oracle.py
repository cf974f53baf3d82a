"""Sees everything that happens in a simulated swarm with a log, and holds it to the promises.

A broken promise raises Violation with the promise's name; nothing here looks at how the cores work inside.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import msgpack

from shoal.protocol.averaging.shelf import Decision
from shoal.protocol.base.effects import Effect, Persist
from shoal.protocol.base.ids import Digest, PeerId, digest
from shoal.protocol.base.masks import masked
from shoal.protocol.log.register import body_of, entry_digest
from shoal.protocol.messages.log import Decided, Entry, Result, Void
from tests.simulation.promises import Violation


class Oracle:
    """Checks every event and every entry against all earlier ones of the same branch of the log."""

    def __init__(self, parent: Oracle | None = None, founding: int = 0) -> None:
        """That of a branch shares what the peers tell, and begins with what its parent knew of the entries before."""
        self.branches: dict[Digest, Oracle] = parent.branches if parent is not None else {}
        self.entries: dict[int, Entry] = {}
        self.results: dict[int, Result] = {}  # decided and not undone
        self.voided: set[int] = set()
        self.decisions: dict[int, Decision] = {}  # that somebody was told of
        self.roots: dict[int, Digest] = {}
        self.was_too_small = False  # after the start
        self.left: list[PeerId] = []  # for good
        self._lives: dict[PeerId, int] = {}
        self._offers: dict[tuple[PeerId, int], list[tuple[int, tuple[float, ...]]]] = defaultdict(list)
        if parent is not None:
            self._lives, self._offers, self.left = parent._lives, parent._offers, parent.left
            self._inherit(parent, founding)

    def _inherit(self, parent: Oracle, founding: int) -> None:
        """All that was decided before `founding`, and what is known of it: of what the parent undid later, nothing."""
        for _, entry in sorted(parent.entries.items()):
            if entry.number < founding:
                self._saw(entry)
        same = {round for round, result in self.results.items() if parent.results.get(round) == result}
        self.decisions = {round: each for round, each in parent.decisions.items() if round in same}
        self.roots = {round: each for round, each in parent.roots.items() if round in same or not round}

    def on(self, branch: Digest) -> Oracle:
        """The one of this branch; ours is the first of which anything was seen."""
        return self.branches.setdefault(branch, self)

    # -- what the peers tell ------------------------------------------------------------------------------------

    def life(self, peer: PeerId, founder: PeerId) -> int:
        """For a new vote file: the founder's first is known to all, and each is larger than those before."""
        before = self._lives.get(peer)
        self._lives[peer] = int(peer == founder) if before is None and peer == founder else (before or 0) + 1000
        return self._lives[peer]

    def offered(self, peer: PeerId, round: int, weight: int, amounts: Sequence[float]) -> None:
        """`peer` has something to contribute to `round`."""
        self._offers[peer, round].append((weight, tuple(amounts)))

    def saw(self, peer: PeerId, effect: Effect) -> None:
        """An effect of `peer` goes out, or to its disk."""
        if isinstance(effect, Persist) and isinstance(effect.record, Decided):
            entry = effect.record.entry
            if not effect.record.certificate.proofs:
                made = digest("log branch", entry_digest(entry))
                if made not in self.branches:
                    self.branches[made] = Oracle(self.on(entry.branch), entry.number)
                return
            self.on(entry.branch)._saw(entry)

    def _saw(self, entry: Entry) -> None:
        if self.entries.get(entry.number) == entry:
            return
        if self.entries.setdefault(entry.number, entry) != entry:
            raise Violation("Agreement", f"two values of number {entry.number}")
        match body_of(entry.body):
            case Result() as result:
                if self.roots.get(result.round - 1, result.base_root) != result.base_root:
                    raise Violation("Fencing", f"round {result.round} was made on another state than the others'")
                self.results[result.round] = result
            case Void():
                self.voided.add(undone := self.newest)
                del self.results[undone]
                self.decisions.pop(undone, None)
                self.roots.pop(undone, None)

    def committed(self, peer: PeerId, decision: Decision, standing: int) -> None:
        """`peer`, whose state is that of round `standing`, is told that a round is decided."""
        if decision.round != standing + 1:
            raise Violation("All or nothing", f"{peer} at round {standing} is told to apply round {decision.round}")
        if self.results.get(decision.round) != decision.result:
            raise Violation("Agreement", f"{peer} is told of another result of round {decision.round} than was decided")
        known = self.decisions.setdefault(decision.round, decision)
        if known.payloads != decision.payloads or known.result != decision.result:
            raise Violation("Agreement", f"two results of round {decision.round}")
        self._check_valid(decision)

    def counted(self, peer: PeerId, decision: Decision, counted: Sequence[bool], offered: Sequence[float]) -> None:
        """`peer` believes of each chunk of what it `offered` in this life that it was `counted`, or not.

        Of a member that was started again within the round, what it offered before may be counted instead.
        """
        if len(self._offers[peer, decision.round]) > 1:
            return
        for chunk, believed in enumerate(counted):
            facts, _ = msgpack.unpackb(decision.payloads[chunk])
            really = any(fact[0] == peer and fact[4] == offered[chunk] for fact in facts)
            if believed != really:
                raise Violation("Residual", f"{peer} keeps the wrong residual of chunk {chunk}")

    def holds(self, peer: PeerId, round: int, root: Digest) -> None:
        """`peer` stands on the state of `round`."""
        if round and round not in self.results and round not in self.voided:
            raise Violation("All or nothing", f"{peer} applied round {round} before it was decided")
        if self.roots.setdefault(round, root) != root:
            raise Violation("All or nothing", f"{peer} holds another state of round {round} than the others")

    def waiting(self, standing: int, reason: str) -> None:
        """A proposer at round `standing` cannot begin a round, and says why."""
        self.was_too_small |= standing > 0 and "members" in reason

    # -- the promises -------------------------------------------------------------------------------------------

    def _check_valid(self, decision: Decision) -> None:
        if len(set(decision.roster)) != len(decision.roster):
            raise Violation("Validity", "a member is in the roster twice")
        found: list[dict[PeerId, int]] = []
        for chunk, (made, payload) in enumerate(zip(decision.means, decision.payloads, strict=True)):
            facts, mean = msgpack.unpackb(payload)
            names = [fact[0] for fact in facts]
            if len(set(names)) != len(names):
                raise Violation("Validity", f"chunk {chunk} of round {decision.round} counts somebody twice")
            if sorted(masked(decision.roster, made.mask)) != sorted(names):
                raise Violation("Validity", f"the mask of chunk {chunk} does not say who is in it")
            if not names:
                raise Violation("Validity", f"chunk {chunk} of round {decision.round} is the mean of nothing")
            for peer, round, root, place, amount, weight in facts:
                self._check_fact(decision, chunk, PeerId(peer), (round, root, place, amount, weight))
            found.append({PeerId(fact[0]): fact[5] for fact in facts})
            total = sum(fact[5] for fact in facts)
            if abs(mean - sum(fact[5] * fact[4] for fact in facts) / total) > 1e-9:
                raise Violation("Validity", f"chunk {chunk} of round {decision.round} is not the weighted mean")
        counted = masked(decision.roster, decision.result.counted)
        for peer, weight in zip(counted, decision.result.weights, strict=True):
            is_twofold = len(self._offers[peer, decision.round]) > 1  # it was started again within the round
            if any(peer not in weights or (not is_twofold and weights[peer] != weight) for weights in found):
                chunks = [each.get(peer) for each in found]
                raise Violation("Validity", f"round {decision.round} counts {peer} by {weight}, its chunks by {chunks}")

    def _check_fact(
        self, decision: Decision, chunk: int, peer: PeerId, fact: tuple[int, bytes, int, float, int]
    ) -> None:
        round, root, place, amount, weight = fact
        if round != decision.round or place != chunk:
            raise Violation("Validity", f"round {decision.round} chunk {chunk} holds one of {round} chunk {place}")
        if root != decision.result.base_root:
            raise Violation("Fencing", f"{peer} contributed to round {round} from another state")
        if not any(offer[1][chunk] == amount and offer[0] == weight for offer in self._offers[peer, round]):
            raise Violation("Validity", f"{peer} never contributed {amount} to round {round}")

    @property
    def newest(self) -> int:
        """The last round that is decided, and not undone."""
        return max(self.results, default=0)


class Blind(Oracle):
    """Sees nothing of a peer that has left a branch and has not got the state of the next one."""

    def committed(self, peer: PeerId, decision: Decision, standing: int) -> None:
        pass

    def counted(self, peer: PeerId, decision: Decision, counted: Sequence[bool], offered: Sequence[float]) -> None:
        pass

    def holds(self, peer: PeerId, round: int, root: Digest) -> None:
        pass
