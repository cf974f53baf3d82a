"""What one member sends and takes in one round: contributions to owners, the owners' means to all.

Rules:
- Which owner a chunk has follows from the roster and the chunk's epoch (owners.py). Epochs only rise, and whoever names
  a higher one makes it known.
- An owner adds the contributions of those who have offered any, in roster order, and goes on without those who are
  lost, or whom the proposer has given up. Each counts by the weight in its signed offer, so by the same at all owners.
- An owner signs its mean, so that anybody can pass it on. A new owner takes over the mean that the old one had already
  sent to somebody (Have) rather than compute it again.
- Nothing is resent unless it is asked for (Give). All that is agreed on, the log decides.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from shoal.protocol.averaging.owned import OwnedChunk
from shoal.protocol.averaging.owners import Owners, send_order
from shoal.protocol.averaging.reducer import Contribute, Reducer
from shoal.protocol.averaging.shelf import Shelf
from shoal.protocol.base.effects import Blamed, Effect, Persist, Send, Tell
from shoal.protocol.base.errors import PayloadError, RemoteError
from shoal.protocol.base.ids import Digest, PeerId, result_hash
from shoal.protocol.base.masks import is_mask, mask_of
from shoal.protocol.base.signing import Signer, check_signature, signed
from shoal.protocol.messages.averaging import Contribution, Give, Have, Made, Mean, MeanIs
from shoal.protocol.messages.log import Seat


@dataclass(frozen=True, slots=True)
class Self:
    """Who we are in a run."""

    me: PeerId
    branches: Callable[[], tuple[Digest, ...]]  # of the log: the one that we are on, then those it goes on from
    part: int
    signer: Signer
    lives: Callable[[], int]  # which life this is; a new one begins when we were removed, and are back

    @property
    def branch(self) -> Digest:
        """The one that we are on."""
        return self.branches()[0]

    @property
    def life(self) -> int:
        """The present one."""
        return self.lives()


class Exchange:
    """One member's side of one round."""

    def __init__(
        self,
        us: Self,
        round: int,
        base_root: Digest,
        chunks: int,
        reducer: Reducer,
        shelf: Shelf,
        receivers: Callable[[], Iterable[PeerId]],
    ) -> None:
        """`receivers`: who is to get means, besides the roster."""
        self._us = us
        self.round = round
        self._base_root = base_root
        self._reducer = reducer
        self._shelf = shelf
        self._receivers = receivers
        self._owners: Owners | None = None  # None: there is no roster yet
        self._chunks = chunks
        self._offers: dict[PeerId, int] = {}  # weights
        self._named: dict[PeerId, set[int]] = {}  # all that were offered: a member may be started again in the round
        self._contribute: Contribute | None = None
        self._weight = 0
        self._owned: dict[int, OwnedChunk] = {}
        self._written: set[tuple[int, Digest]] = set()  # means that are to be found on our disk
        self._sources: dict[int, PeerId] = {}  # whom we have asked for the mean of a chunk that we inherited
        self.roster: tuple[PeerId, ...] = ()
        self.epochs = [0] * chunks
        self.means: list[Made | None] = [None] * chunks
        self.absent: dict[PeerId, None] = {}  # the proposer goes on without what they have not handed in
        self.lost: dict[PeerId, None] = {}  # they are dead, as far as we know
        self.taken = 0  # payloads that came in and were of use

    def __repr__(self) -> str:
        done = sum(made is not None for made in self.means)
        return f"Exchange({self.round}, means={done}/{self._chunks}, offers={len(self._offers)}/{len(self.roster)})"

    # -- read side ----------------------------------------------------------------------------------------------

    @property
    def is_complete(self) -> bool:
        """Whether every chunk's mean is here."""
        return None not in self.means

    @property
    def is_under_way(self) -> bool:
        """Whether all of the roster have offered, or are gone on without, and somebody brings anything."""
        if not self.roster or not all(peer in self._offers or self._is_gone(peer) for peer in self.roster):
            return False
        return any(self.means) or self.is_fed_by(self.roster)

    def is_fed_by(self, peers: Iterable[PeerId]) -> bool:
        """Whether any of `peers` contributes, and is not gone on without."""
        return any(self._offers.get(peer) and not self._is_gone(peer) for peer in peers)

    def table(self) -> tuple[Made, ...]:
        """The complete result."""
        return tuple(made for made in self.means if made is not None)

    def is_written(self, chunk: int, made: Made) -> bool:
        """Whether a mean is on our disk already, or about to be."""
        return (chunk, made.hash) in self._written

    def offered(self, peer: PeerId) -> int | None:
        """The weight that `peer` has offered."""
        return self._offers.get(peer)

    def without_offer(self) -> list[PeerId]:
        """Those of the roster who still train, as far as we know."""
        return [peer for peer in self.roster if peer not in self._offers and not self._is_gone(peer)]

    def owner(self, chunk: int) -> PeerId:
        """The present owner of a chunk."""
        owner = self._owners.at(chunk, self.epochs[chunk]) if self._owners is not None else None
        assert owner is not None
        return owner

    def owners(self) -> list[PeerId]:
        """The present owner of each chunk; of none while there is no roster."""
        return [self.owner(chunk) for chunk in range(self._chunks)] if self._owners is not None else []

    def owns_any(self) -> bool:
        """Whether this member owns chunks."""
        return bool(self._owned)

    def unfinished(self) -> list[int]:
        """Chunks whose mean is not here."""
        return [chunk for chunk, made in enumerate(self.means) if made is None]

    @property
    def is_orphaned(self) -> bool:
        """Whether the mean of a chunk is not here, and its owner is lost."""
        return self._owners is not None and any(self.owner(chunk) in self.lost for chunk in self.unfinished())

    def awaited(self) -> list[PeerId]:
        """Whose payloads we wait for, in roster order; ourselves, too, while a chunk of ours is open."""
        if not self.is_under_way and self._contribute is None:
            return []
        wanted = {self.owner(chunk) for chunk in self.unfinished()}
        for chunk in self._owned:
            wanted.update(self._missing(chunk))
        return [peer for peer in self.roster if peer in wanted]

    def to_blame(self) -> list[PeerId]:
        """Whose contribution an owned chunk lacks, which hangs on nobody else; if nobody's, who owes us a mean."""
        bringing = {peer for chunk in self._owned for peer in self._missing(chunk)}
        wanted = bringing or {self.owner(chunk) for chunk in self.unfinished()}
        return [peer for peer in self.roster if peer in wanted]

    def lacks_contribution(self, peer: PeerId) -> bool:
        """Whether `peer` has yet to bring us something of its own, for which it needs nobody else."""
        return any(peer in self._missing(chunk) for chunk in self._owned)

    def contradicts(self, peer: PeerId) -> bool:
        """Whether something of `peer` is here by a weight that it has never offered."""
        named = {None, *self._named.get(peer, ())}
        return any(owned.uncounted(peer) not in named for owned in self._owned.values())

    def want(self, peer: PeerId) -> Give | None:
        """What we lack from `peer`, if anything."""
        contributions = tuple(chunk for chunk in self._owned if peer in self._missing(chunk))
        means = tuple(chunk for chunk in self.unfinished() if self.owner(chunk) == peer)
        if not contributions and not means:
            return None
        return Give(self._us.part, self.round, contributions, means, ())

    # -- commands -----------------------------------------------------------------------------------------------

    def seat(self, seats: tuple[Seat, ...]) -> list[Effect]:
        """The round has this roster: its first, or one with more members at its end."""
        if len(seats) <= len(self.roster):
            return []
        is_first, was_seated = self._owners is None, self._us.me in self.roster
        self._owners = Owners(seats, self._chunks)
        self.roster = tuple(seat.peer for seat in seats)
        if is_first:
            self._owned = {chunk: OwnedChunk(chunk, self._reducer) for chunk in self._owners.of(self._us.me)}
        return self._fold_all() if was_seated else self._send_contributions()

    def contribute(self, weight: int, contribute: Contribute | None) -> list[Effect]:
        """We are ready; without a contribution, others need not wait for one."""
        self._offers[self._us.me] = weight
        self._contribute, self._weight = (contribute, weight) if weight else (None, 0)
        return self._send_contributions()

    def offer(self, peer: PeerId, weight: int) -> list[Effect]:
        """`peer` is ready, on our state. Who has offered nothing may still offer something."""
        self._offers[peer] = weight
        self._named.setdefault(peer, set()).add(weight)
        self.lost.pop(peer, None)
        return self._fold_all()

    def lose(self, peer: PeerId) -> list[Effect]:
        """Go on without `peer`, unless its contribution is here. Its chunks are the proposer's business."""
        self.lost[peer] = None
        self._sources = {chunk: source for chunk, source in self._sources.items() if source != peer}
        return self._fold_all()

    def leave_out(self, peers: Iterable[PeerId]) -> list[Effect]:
        """Wait no longer for what these have not handed in."""
        self.absent.update(dict.fromkeys(peers))
        return self._fold_all()

    def move(self, epochs: Iterable[tuple[int, int]]) -> list[Effect]:
        """Chunks have other owners from now on."""
        effects: list[Effect] = []
        for chunk, epoch in epochs:
            owner = self._owners.at(chunk, epoch) if self._owners is not None else None
            if owner is not None and epoch > self.epochs[chunk]:
                effects += self._move(chunk, epoch, owner)
        return effects

    def moves(self, lost: Collection[PeerId], fit: Collection[PeerId]) -> list[tuple[int, int]]:
        """As proposer: the epochs in which chunks that we lack have owners who are not lost, and `fit` if any are."""
        assert self._owners is not None
        found = []
        for chunk in self.unfinished():
            epoch = self._owners.after(chunk, self.epochs[chunk], lost, fit) if self.owner(chunk) in lost else None
            if epoch is not None:
                found.append((chunk, epoch))
        return found

    def recall(self, mean: Mean) -> None:
        """A mean that was here in an earlier process of ours, and was checked then; who needs it asks for it.

        That process may have been on another branch of the log, or on another state: then it is none of this round,
        though the round may have been decided with it, before the branch that we are on now was founded.
        """
        chunk, made = mean.chunk, mean.made
        if chunk >= self._chunks:
            return
        self._shelf.put(chunk, made, mean.payload)
        self._written.add((chunk, made.hash))
        if self._is_vouched(chunk, made):
            self.means[chunk] = self.means[chunk] or made

    # -- inputs -------------------------------------------------------------------------------------------------

    def receive_contribution(self, sender: PeerId, message: Contribution) -> list[Effect]:
        """A chunk for us to add, if it was trained from our state: its sender may have come from another one since.

        It may come before its offer, and waits for that.
        """
        chunk = self._checked(sender, message.chunk)
        if not message.weight:
            raise RemoteError("contributes with weight zero", sender)
        effects = self.move([(chunk, message.epoch)])
        owned = self._owned.get(chunk)
        is_ours, offered = message.base_root == self._base_root, self._offers.get(sender)
        if owned is None or self.means[chunk] is not None or not is_ours:
            return effects
        if self._sources.get(chunk) == sender:  # it was started again, and has lost the mean that it had told us of
            del self._sources[chunk]
        if not owned.lacks(sender, offered):
            return effects
        self.taken += message.weight == offered
        return [*effects, *_blames(owned.add(sender, message.weight, message.payload)), *self._finish(chunk)]

    def receive_mean(self, sender: PeerId, message: Mean) -> tuple[bool, list[Effect]]:
        """A mean; whether it is new. RemoteError unless its owner vouches for it, or we have asked `sender` for it.

        Its bytes are looked at if the chunk's owner has signed them for this round, on our state and branch, or if we
        have asked `sender` for them by hash. What we asked for may be another state's: then it is only on the shelf,
        for a result that names it. What an owner signed on the branch before ours is ignored, and nobody is blamed.
        """
        chunk, made = self._checked(sender, message.chunk), message.made
        was_asked = self._shelf.was_asked(message, sender)
        if not was_asked:
            try:
                self._check_made(chunk, made, sender)
            except RemoteError:
                if self._is_of_before(chunk, made):
                    return False, []
                raise
        known = self.means[chunk]
        if known is not None and not was_asked:
            return False, []
        self._shelf.check(chunk, message.payload, sender)
        is_new = self._shelf.put(chunk, made, message.payload)
        self.taken += is_new
        is_ours = known is None and self._is_of_this_round(chunk, made)
        is_ours = is_ours and (not was_asked or self._is_vouched(chunk, made))
        return is_new, self._keep(chunk, made) if is_ours else []

    def receive_have(self, sender: PeerId, message: Have) -> list[Effect]:
        """Somebody holds what we were made owner of: take it instead of computing it; ask one at a time."""
        chunk = self._checked(sender, message.chunk)
        if chunk not in self._owned or self.means[chunk] is not None:
            return []
        if sender in self.lost or self._sources.get(chunk, sender) != sender:
            return []
        self._sources[chunk] = sender
        self._shelf.ask(chunk, message.hash, sender)
        return [Send(sender, Give(self._us.part, self.round, (), (), ((chunk, message.hash),)))]

    def moved(self, sender: PeerId, message: Give) -> tuple[tuple[int, int], ...]:
        """The epochs of chunks that `sender` asks us about as nobody would who knew them."""
        if self._owners is None:
            return ()
        chunks = [chunk for chunk in message.contributions if self.owner(self._checked(sender, chunk)) != sender]
        chunks += [chunk for chunk in message.means if self.owner(self._checked(sender, chunk)) != self._us.me]
        return tuple((chunk, self.epochs[chunk]) for chunk in dict.fromkeys(chunks) if self.epochs[chunk])

    def answer(self, sender: PeerId, message: Give) -> list[Effect]:
        """What `sender` lacks of ours; nothing, if we lack it ourselves."""
        effects: list[Effect] = []
        for chunk in dict.fromkeys(message.contributions):
            if self._owners is not None and self.owner(self._checked(sender, chunk)) == sender:
                effects += self._hand_over(chunk)
        for chunk in dict.fromkeys(message.means):
            made = self.means[self._checked(sender, chunk)]
            if made is not None:
                effects.append(Send(sender, self._mean(chunk, made)))
        return effects

    # -- inside -------------------------------------------------------------------------------------------------

    def _checked(self, sender: PeerId, chunk: int) -> int:
        if chunk >= self._chunks:
            raise RemoteError(f"names chunk {chunk} of {self._chunks}", sender)
        return chunk

    def _missing(self, chunk: int) -> list[PeerId]:
        """Who has yet to bring something for a chunk that we own."""
        if self.means[chunk] is not None:
            return []
        if chunk in self._sources:
            return [self._sources[chunk]]
        owned, offers = self._owned[chunk], self._offers
        bringing = [peer for peer in self.roster if offers.get(peer) and self._is_awaited(peer)]
        return [peer for peer in bringing if owned.lacks(peer, offers[peer])]

    def _is_awaited(self, peer: PeerId) -> bool:
        """Whether a contribution of `peer` may still come."""
        return not self._is_gone(peer) and self._offers.get(peer, 1) > 0

    def _is_gone(self, peer: PeerId) -> bool:
        """An offer that came after the proposer's word is waited for, too."""
        return peer in self.lost or (peer in self.absent and not self._offers.get(peer))

    def _send_contributions(self) -> list[Effect]:
        if self._owners is None or self._us.me not in self.roster:
            return self._fold_all()
        effects: list[Effect] = []
        for chunk in send_order(self.owners(), self._us.me):
            effects += self._hand_over(chunk)
        return effects + self._fold_all()

    def _hand_over(self, chunk: int) -> list[Effect]:
        """Give a chunk's owner the mean that we hold by name, else our contribution."""
        us, owner, made = self._us, self.owner(chunk), self.means[chunk]
        if made is not None:
            return [] if owner == us.me else [Send(owner, Have(us.part, self.round, chunk, made.hash))]
        if self._contribute is None or us.me not in self.roster:
            return []
        if owner == us.me:
            self._owned[chunk].hold(us.me, self._weight, partial(self._contribute, chunk))
            return []
        message = Contribution(us.part, self.round, chunk, self.epochs[chunk], self._weight, self._base_root, b"")
        return [Send(owner, message, is_late=True)]

    def _fold_all(self) -> list[Effect]:
        return [effect for chunk in list(self._owned) for effect in self._finish(chunk)]

    def _finish(self, chunk: int) -> list[Effect]:
        """Fold a chunk of ours; once nobody is awaited its mean goes to the others."""
        if self.means[chunk] is not None:
            return []
        owned, us = self._owned[chunk], self._us
        is_over, errors = owned.fold(self.roster, self._offers.get, self._is_awaited)
        blames = _blames(errors)
        if not is_over or not owned.counted:
            return blames
        payload, mask = owned.finish(), mask_of(self.roster, owned.counted)
        hash, epoch = result_hash(mask, payload), self.epochs[chunk]
        said = MeanIs(us.branch, us.part, self.round, chunk, epoch, self._base_root, hash, us.me, us.life, b"")
        made = Made(hash, mask, epoch, us.me, us.life, signed(said, us.signer).signature)
        self._shelf.put(chunk, made, payload)
        return blames + self._keep(chunk, made)

    def _keep(self, chunk: int, made: Made) -> list[Effect]:
        """A chunk's mean is here."""
        self.means[chunk] = made
        return self._broadcast(chunk, made) if self.owner(chunk) == self._us.me else []

    def _broadcast(self, chunk: int, made: Made) -> list[Effect]:
        """As its owner, hand a mean on, and write it down at once: in a crash of all it is here."""
        mean = self._mean(chunk, made)
        self._written.add((chunk, made.hash))
        others = dict.fromkeys((*self.roster, *self._receivers()))
        sends = [Send(peer, mean) for peer in others if peer != self._us.me and peer not in self.lost]
        return [Persist("means", mean), *sends]

    def _mean(self, chunk: int, made: Made) -> Mean:
        mean = self._shelf.find(self._us.part, self.round, chunk, made.hash)
        assert mean is not None
        return mean

    def _is_of_this_round(self, chunk: int, made: Made) -> bool:
        return self._owners is not None and self._owners.at(chunk, made.epoch) == made.owner

    def check_table(
        self,
        means: Sequence[Made],
        roster: Collection[PeerId],
        base: Digest,
        branches: Sequence[Digest],
        sender: PeerId,
    ) -> None:
        """RemoteError, naming `sender`, unless each is its owner's word: the digest of a table does not say that.

        `roster` and `base`, the root of a state, are those of the result, which was decided on one of the `branches`.
        Who follows without having been in the round knows its members alone, and not what each owned.
        """
        for chunk, made in enumerate(means):
            if made.owner not in roster or (self._owners is not None and not self._is_of_this_round(chunk, made)):
                raise RemoteError(f"sent a table with a mean of chunk {chunk} by somebody who does not own it", sender)
            if not any(self._is_word(chunk, made, base, branch) for branch in branches):
                raise RemoteError(f"sent a table with a mean of chunk {chunk} that its owner has not signed", sender)

    def _check_made(self, chunk: int, made: Made, sender: PeerId) -> None:
        """RemoteError, naming `sender`, unless the owner of the chunk in that epoch has signed this."""
        if not self._is_of_this_round(chunk, made):
            raise RemoteError(f"sent a mean of chunk {chunk} by somebody who does not own it", sender)
        if not made.mask or not is_mask(made.mask, len(self.roster)):
            raise RemoteError("sent a mean whose mask does not fit the roster", sender)
        if not self._is_vouched(chunk, made):
            raise RemoteError(f"sent a mean of chunk {chunk} that its owner has not signed", sender)

    def _is_of_before(self, chunk: int, made: Made) -> bool:
        """Whether its owner made this before it had heard of the branch that we are on."""
        return any(self._is_word(chunk, made, self._base_root, branch) for branch in self._us.branches()[1:])

    def _is_vouched(self, chunk: int, made: Made) -> bool:
        return self._is_word(chunk, made, self._base_root, self._us.branch)

    def _is_word(self, chunk: int, made: Made, base_root: Digest, branch: Digest) -> bool:
        """Whether the owner has signed this as a mean of this round, on that state and branch."""
        us = self._us
        said = MeanIs(
            *(branch, us.part, self.round, chunk, made.epoch, base_root, made.hash),
            *(made.owner, made.life, made.signature),
        )
        with suppress(RemoteError):
            check_signature(said, made.owner, us.signer)
            return True
        return False

    def _move(self, chunk: int, epoch: int, owner: PeerId) -> list[Effect]:
        before, self.epochs[chunk], made = self.owner(chunk), epoch, self.means[chunk]
        if owner != self._us.me:
            self._owned.pop(chunk, None)
            return self._hand_over(chunk) if owner != before else []
        if before == self._us.me:
            return []
        if made is not None:
            return self._broadcast(chunk, made)
        self._owned[chunk] = OwnedChunk(chunk, self._reducer)
        self._sources.pop(chunk, None)
        return [*self._hand_over(chunk), *self._finish(chunk)]


def _blames(errors: Iterable[PayloadError]) -> list[Effect]:
    return [Tell(Blamed(error.peer, error.reason)) for error in errors if error.peer is not None]
