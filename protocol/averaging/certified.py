"""Which states of a part the log has certified, round by round, as far as this member has read it.

A state is certified by the result that was made on it; the first one by the run's founding. What is known of the last
rounds is kept; of earlier ones no state is offered any more.
"""

from __future__ import annotations

from shoal.protocol.averaging.policy import Base
from shoal.protocol.base.ids import NO_DIGEST, Digest
from shoal.protocol.base.wire import Message
from shoal.protocol.log.register import state_of
from shoal.protocol.messages.log import PartState, Register, Result, Void

KEPT = 256  # rounds: more than are made while somebody downloads the state over a slow line, and catches up


class Certified:
    """What state transfer needs to know of the log."""

    def __init__(self, origin: Base, register: Register, part: int) -> None:
        self.origin = origin
        self._part = part
        self.restart(register)

    def restart(self, register: Register) -> None:
        """Begin anew with this register, of another branch."""
        origin, state = self.origin, state_of(register, self._part)
        self._bases = {origin.round: origin}
        self._roots = {origin.round: origin.root}
        self._tokens = {origin.round: 0}
        self._take(state)

    def tokens(self, round: int) -> int:
        """Tokens behind the state after `round` that were added since the run began; 0 if that is not known."""
        return self._tokens.get(round, 0)

    @property
    def newest(self) -> int:
        """The last round that is over."""
        return max(self._bases)

    def recall(self, body: Message, register: Register) -> None:
        """Like `read`, at a start: all rounds are kept, as the state on our disk may be that after any of them."""
        if isinstance(body, Result | Void) and body.part == self._part:
            self._take(state_of(register, self._part))

    def read(self, body: Message, register: Register) -> None:
        """An entry was decided, and the register after it is this."""
        self.recall(body, register)
        for known in (self._bases, self._roots, self._tokens):
            for round in sorted(known)[:-KEPT]:
                del known[round]

    def skip(self, register: Register) -> None:
        """The log goes on from this register."""
        self._take(state_of(register, self._part))

    def certified_root(self, round: int) -> Digest | None:
        """The root of the state after `round`, if the log has certified it."""
        return self._roots.get(round)

    def certifies(self, round: int, root: Digest) -> bool:
        """Whether the state after `round` is known to have this root."""
        return self._roots.get(round) == root

    def history(self, round: int) -> Digest | None:
        """The history digest after a round; None if it is not known here."""
        base = self._bases.get(round)
        return base.history if base is not None else None

    def base(self, round: int, root: Digest) -> Base:
        """What the round after `round` builds on, given the state's root."""
        known = self._bases[round]
        return Base(round, known.entry, known.history, root)

    def _take(self, state: PartState) -> None:
        self._bases[state.round] = Base(state.round, state.result, state.history, NO_DIGEST)
        self._tokens[state.round] = state.tokens
        self._tokens.setdefault(state.round - 1, state.tokens - state.last_tokens)
        if state.result == state.before and state.round:  # nothing yet, or undone: the state is that before
            self._roots[state.round] = state.root
        elif state.result:
            before = Base(state.round - 1, state.before, state.last_history, state.root)
            self._bases.setdefault(before.round, before)
            self._roots[before.round] = state.root
