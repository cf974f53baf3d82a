"""Catching up: gets one certified version of the state from several donors at once.

    joiner                                      donors
    GET_STATE(any) ───────────────────────────► one, then GET_STATE(that round) to others
             ◄───────────────────────── STATE_IS, pinned
    GET_STATE_CHUNK(i) ... ───────────────────► all of them, a few at a time each
             ◄───────────────────────── STATE_CHUNK
    HAVE_CHUNKS ──────────────────────────────► now and then, so that the version stays pinned

    joiner                                      other joiners of the same version
    HAVE_CHUNKS ──────────────────────────────► now and then
    GET_STATE_CHUNK(j) ... ───────────────────► whoever has it

Rules:
- A version counts if the log certifies its root: the result that was made on it names that. So donors offer the
  version before their newest, or the run's first one; the rounds after it are replayed.
- Who has just started may hold its newest version alone. That counts if voters enough to be believed stand on it.
- Who is on another branch of the log offers what no certificate of ours names, and is no liar for it. It is not asked.
- Every chunk is checked by hash as it comes, before more is asked of its donor. Who sends a wrong one is named, and not
  asked again, whatever it offers, unless all who may have the state have lied. So that costs what was on its way: one
  chunk, or up to `WINDOW` if it was quick.
- A silent donor's chunks are asked of others. What it sends all the same is taken: the hash says what it is. It is
  asked again once it has sent such a chunk; a new offer, or news of what it has, is not enough.
- Who takes long for a chunk is asked for one at a time, and is waited for longer; where chunks get into each other's
  way, as our line is slow, few donors are asked at once (download.py). All of them hear now and then that we are still
  at it, and keep the version.
- Joiners of one version tell each other what they have, and serve it. Of the donors each first asks for what none of
  the others has, in a share of its own. So the donors' lines carry each chunk little more than once.
- Anybody can claim to be such a joiner. So others never have more than half of the places, and none before the first
  chunk has come from a donor; and if all that is missing is left to them, and does not come or takes long, donors are
  asked for it.
- Only versions later than ours are fetched: if we advance by rounds meanwhile, older ones are of no use any more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from shoal.protocol.averaging.certified import Certified
from shoal.protocol.averaging.policy import Base
from shoal.protocol.base.allowance import Allowance
from shoal.protocol.base.effects import Blamed, Effect, Event, Send, Tell, Timer, Wake
from shoal.protocol.base.ids import NO_DIGEST, Digest, PeerId, content_hash
from shoal.protocol.base.wire import Message
from shoal.protocol.catchup.donor import Donor, Room, state_root
from shoal.protocol.catchup.download import SLACK, Download, Fellow, bits_of, set_of
from shoal.protocol.membership.view import View, without_relay
from shoal.protocol.messages.membership import RunStatus
from shoal.protocol.messages.transfer import GetState, GetStateChunk, HaveChunks, StateChunk, StateIs

QUICK = 2.0  # seconds in which a chunk comes from whoever is asked for several at a time
WINDOW = 4  # as many, of one donor,
SHARED_WINDOW = 2  # and of one that other joiners ask, too: what is asked for is not known to them
MAX_DONORS = 8
MAX_FELLOWS = 16  # other joiners with whom we exchange chunks
TELLING = 0.25  # seconds between two times that we tell them what has come
NEWS = (4, 2 / TELLING)  # that are read of each, in a burst and a second
MAX_LIARS = 64  # remembered
PATIENCE = 3.0  # seconds without an answer before another donor is asked; doubled whenever no donor answers in time
MOST_PATIENCE = 60.0
FIRST_PATIENCE = 20.0  # while no chunk has come at all, as our line may be slow
RENEWING = 10.0  # seconds after which the donors hear again that we are still at it


@dataclass(frozen=True, slots=True)
class StateReceived(Event):
    """A certified version is complete: install what the room for it has, then open rounds on `base`."""

    base: Base


class Transfer:
    """One member's side of state transfer: joiner when it must be, donor whenever it can."""

    def __init__(
        self,
        me: PeerId,
        part: int,
        certified: Certified,
        view: View,
        room: Room,
        is_vouched: Callable[[int, Digest], bool] = lambda round, root: False,
    ) -> None:
        """`is_vouched` says of a round and a root whether the voters say that this is its state."""
        self._me = me
        self._is_vouched = is_vouched
        self._part = part
        self._certified = certified
        self._view = view
        self._download: Download | None = None
        self._unchecked: tuple[PeerId, StateIs] | None = None  # an offer that our log does not certify yet
        self._invited: list[PeerId] = []
        self._least = 0  # no version of an earlier round can be certified, though donors may have pinned one for us
        self._heard_at = 0.0
        self._patience = PATIENCE
        self._liars: deque[PeerId] = deque(maxlen=MAX_LIARS)
        self._strange: dict[PeerId, Digest] = {}  # whose offers are of no use to us while they have this history
        self._tries = 0
        self._token = 0
        self._is_telling = False
        self._room = room
        self.donor = Donor(part, certified.certifies, room, is_vouched)
        self.active = False
        self.beyond = -1  # only versions after this round are of use

    def __repr__(self) -> str:
        return f"Transfer(active={self.active}, {self._download}, {self.donor})"

    def seconds_left(self, now: float) -> float | None:
        """How long the current download still takes; None if that is not known."""
        return self._download.seconds_left(now) if self._download is not None else None

    def progress(self) -> tuple[int, int]:
        """(chunks here, chunks in all) of the current download."""
        return (len(self._download.here), len(self._download.hashes)) if self._download else (0, 0)

    # -- joiner ---------------------------------------------------------------------------------------------

    def start(self, now: float, beyond: int) -> list[Effect]:
        """Get a version later than `beyond`, if any member seems to have one; goes on until it is complete."""
        if self.active:
            return []
        self.beyond = beyond
        if not self._candidates():
            return []
        self.active, self._download, self._patience, self._least = True, None, PATIENCE, 0
        self._strange.clear()
        self._token += 1
        self._is_telling = False
        return [*self._ask(now), self._wake("look")]

    def restart(self, now: float, beyond: int) -> list[Effect]:
        """The same, whatever was being downloaded, here or from us: that is of use no more."""
        self.donor.forget()
        self._liars.clear()  # what they offered was of another branch
        self._strange.clear()
        self.active, self._download, self._unchecked = False, None, None
        self._room.drop()
        return self.start(now, beyond)

    def take(self) -> StateReceived | None:
        """The version, once it is complete; it is returned once."""
        download = self._download
        if download is None or not download.is_complete:
            return None
        self.active, self._download = False, None
        return StateReceived(download.base)

    def log_read(self, now: float) -> list[Effect]:
        """Our log has gone on: perhaps it certifies now what was offered to us."""
        offer, self._unchecked = self._unchecked, None
        base = self._download.base if self._download is not None else None
        if base is not None and self._certified.certified_root(base.round) not in (None, base.root):
            return self._begin_anew(now)  # the voters on whose word we took it were wrong
        if offer is None or not self.active:
            return []
        sender, message = offer
        if self._certified.certified_root(message.round) in (None, state_root(message.layout, message.chunks)):
            return self._receive_offer(now, sender, message)
        return self._leave_alone(now, sender)  # it may have left the branch that this was of since

    def passed(self, round: int) -> None:
        """Note that we have reached `round` by ourselves: versions up to it are of no use any more."""
        self.beyond = max(self.beyond, round)
        if self._download is None or self._download.base.round <= self.beyond:
            self._download = None
            self._room.drop()

    def fire(self, now: float, timer: Timer) -> list[Effect]:
        """Replace silent donors, or end expired leases."""
        if timer.name == "leases":
            return self.donor.look(now, self._wake("leases"))
        if timer.token != self._token or not self.active:
            return []
        if timer.name == "tell":
            return self._tell_again(now)
        if not self._candidates():  # nobody is ahead of us any more
            self.active = False
            return []
        if self._download is None:
            late = self._begin_anew(now) if now - self._heard_at > self._patience else []
            return [self._wake("look"), *self.log_read(now), *late]
        kept = self._keep_leases(now, self._download)
        return [self._wake("look"), *kept, *self._replace_silent(now, self._download)]

    def receive(self, now: float, sender: PeerId, message: Message) -> list[Effect]:
        """Take any message of state transfer."""
        match message:
            case GetState():
                return [*self.donor.offer(now, sender, message), *self.donor.watch(self._wake("leases"))]
            case GetStateChunk():
                return self.donor.serve(now, sender, message, self._has_come(sender, message))
            case StateIs() if self.active and sender in self._invited:
                return self._receive_offer(now, sender, message)
            case StateChunk() if self._download is not None:
                return self._receive_chunk(now, sender, message, self._download)
            case HaveChunks():
                self.donor.renew(now, sender, message.round)
                return self._receive_news(now, sender, message, self._download) if self._download is not None else []
        return []

    # -- inside ---------------------------------------------------------------------------------------------

    def _ask(self, now: float) -> list[Effect]:
        """Ask one donor after the other which version it has."""
        donors = self._candidates()
        if not donors:
            return []
        self._heard_at, self._unchecked = now, None
        self._tries += 1
        return self._invite([donors[(self._tries - 1) % len(donors)]], 0)

    def _candidates(self) -> list[PeerId]:
        """Members that may have a version for us, most advanced first. If all of them have lied, all may try again.

        A member at round 0 without a root has none: it waits for the run's origin itself. Nor has one for us who is on
        another branch of the log, as far as that shows in its history.
        """

        def round_of(peer: PeerId) -> int:
            status = self._view.status(peer)
            if status is None or not (status.round or status.root != NO_DIGEST) or self._is_strange(peer, status):
                return -1
            return status.round

        ahead = [peer for peer in self._view.alive() if self._is_useful(round_of(peer)) or self._is_newest(peer)]
        if all(peer in self._liars for peer in ahead):
            self._liars.clear()
        honest = [peer for peer in ahead if peer not in self._liars]
        near = without_relay(self._me, honest, self._view)
        return sorted(near, key=lambda peer: (-round_of(peer), peer))[:MAX_DONORS]

    def _is_strange(self, peer: PeerId, status: RunStatus) -> bool:
        """Whether it stands elsewhere than our log, or did when it last made us an offer.

        Not who stands on a result that was undone: that has the state before it.
        """
        known, before = (self._certified.history(round) for round in (status.round, status.round - 1))
        is_elsewhere = known not in (None, before, status.history)
        return is_elsewhere or self._strange.get(peer) == status.history

    def _is_surely_ours(self, peer: PeerId, round: int) -> bool:
        """Whether what it holds of `round` is of the branch that we are on, if it is right."""
        status = self._view.status(peer)
        return status is not None and status.round >= round and self._certified.history(status.round) == status.history

    def _is_useful(self, round: int) -> bool:
        """Whether a donor whose last round is `round` has a certified version for us."""
        first = self._certified.origin.round
        return round >= first and (round if round == first else round - 1) > self.beyond

    def _is_newest(self, peer: PeerId) -> bool:
        """Whether a donor stands on the newest state, as the voters say: it may hold no other."""
        status = self._view.status(peer)
        return status is not None and status.round > self.beyond and self._is_vouched(status.round, status.root)

    def _invite(self, donors: Iterable[PeerId], round: int) -> list[Effect]:
        self._invited = [*self._invited, *donors][-2 * MAX_DONORS :]
        least = max(0, self.beyond + 1, self._least)
        return [Send(peer, GetState(self._part, round, least)) for peer in donors]

    def _receive_offer(self, now: float, sender: PeerId, message: StateIs) -> list[Effect]:
        if sender in self._liars:
            return []
        root, certified = state_root(message.layout, message.chunks), self._certified.certified_root(message.round)
        if certified is None and self._is_vouched(message.round, root):
            certified = root
        if certified is not None and certified != root:
            if not self._is_surely_ours(sender, message.round):
                return self._leave_alone(now, sender)
            return self._blame(sender, f"offers a state of round {message.round} that no certificate names")
        effects: list[Effect] = []
        if self._download is None:
            if message.round <= self.beyond or message.round < self._least:
                return []
            if certified is None and message.round < self._certified.newest:  # our log begins later: it never will be
                self._least = max(self._least, message.round + 1)
                return self._ask(now)
            if certified is None:
                self._unchecked = (sender, message)
                return []
            self._download = self._begin(now, message, root)
            effects = self._invite([peer for peer in self._candidates() if peer != sender], message.round)
            effects += self._begin_to_tell(now, self._download)
        elif (message.round, root) != (self._download.base.round, self._download.base.root):
            return []
        if sender not in self._download.donors and sender not in self._download.owing:
            self._download.donors.append(sender)
            self._download.fellows.pop(sender, None)
        return effects + self._ask_chunks(now, self._download)

    def _leave_alone(self, now: float, peer: PeerId) -> list[Effect]:
        """`peer` may be on another branch, where that state is right: others are asked, until it stands elsewhere."""
        status = self._view.status(peer)
        if status is None or self._strange.get(peer) == status.history:
            return []
        self._strange[peer] = status.history
        return self._ask(now) if self._download is None else []

    def _begin(self, now: float, offer: StateIs, root: Digest) -> Download:
        """Of a version that was begun before, also by an earlier process, only what is missing is asked for."""
        here = self._room.begin(offer.round, offer.layout, offer.chunks)
        missing = dict.fromkeys(index for index in range(len(offer.chunks)) if index not in here)
        return Download(
            self._certified.base(offer.round, root), offer.chunks, here, missing, begun=(now, len(here)), renewed=now
        )

    def _receive_chunk(self, now: float, sender: PeerId, message: StateChunk, download: Download) -> list[Effect]:
        asked = download.asked.get(message.index)
        is_asked = asked is not None and asked[0] == sender
        is_owed = not is_asked and download.owes(sender, message.index)
        is_late = not is_asked and sender in self._invited and download.lacks(message.index)
        if message.round != download.base.round or not (is_asked or is_owed or is_late):
            return []
        if not message.payload:
            if sender in download.fellows:
                download.give_up(sender)  # it said that it has it
            else:
                download.drop(sender)
            return self._ask_chunks(now, download)
        if content_hash(message.payload) != download.hashes[message.index]:
            download.drop(sender)
            blame = self._blame(sender, f"sent a wrong chunk {message.index} of the state")
            return [*blame, *self._ask_chunks(now, download)]
        if asked is not None and is_asked:
            self._learn(now, sender, now - download.last_heard(sender, asked[1]), download)
        elif (since := download.settle(sender)) is not None:
            self._learn(now, sender, now - since, download)
        if download.lacks(message.index):
            download.take(message.index)
            self._room.put(message.index, message.payload)
        return self._tell(download) if download.is_complete else self._ask_chunks(now, download)

    def _learn(self, now: float, sender: PeerId, took: float, download: Download) -> None:
        download.heard[sender] = now
        is_donor = sender in download.donors
        download.learn(took, is_donor)
        if is_donor:
            self._patience = max(self._patience, min(MOST_PATIENCE, SLACK * took))
        if took < QUICK:
            download.quick.add(sender)
        else:
            download.quick.discard(sender)

    def _blame(self, peer: PeerId, reason: str) -> list[Effect]:
        if self._download is not None:
            self._download.owing.pop(peer, None)
        if peer in self._liars:
            return []
        self._liars.append(peer)
        return [Tell(Blamed(peer, reason))]

    def _ask_chunks(self, now: float, download: Download) -> list[Effect]:
        """Keep every donor busy with a few chunks."""
        effects: list[Effect] = []
        for peer in [*download.fellows, *download.donors]:
            is_donor = peer in download.donors
            window = SHARED_WINDOW if is_donor and download.fellows else WINDOW
            free = download.free(peer, window if peer in download.quick else 1)
            if free <= 0:
                continue
            for index in download.from_donor(free) if is_donor else download.from_fellow(peer, free):
                del download.unasked[index]
                download.asked[index] = (peer, now)
                effects.append(Send(peer, GetStateChunk(self._part, download.base.round, index)))
        return effects

    # -- inside: other joiners ------------------------------------------------------------------------------

    def _fellows(self, download: Download) -> list[PeerId]:
        """Who may be downloading the same version; what we tell those who do not is of no use to them."""
        statuses = {peer: self._view.status(peer) for peer in self._view.alive() if peer not in self._liars}
        syncing = [peer for peer, status in statuses.items() if status is not None and status.phase == "syncing"]
        near = without_relay(self._me, syncing, self._view)
        return list(dict.fromkeys([*download.fellows, *near]))[:MAX_FELLOWS]

    def _tell(self, download: Download) -> list[Effect]:
        """Tell them what has come since we did so last."""
        news = [peer for peer in self._fellows(download) if download.told.get(peer) != len(download.here)]
        download.told |= dict.fromkeys(news, len(download.here))
        have = self._what_is_here(download)
        return [Send(peer, have) for peer in news]

    def _what_is_here(self, download: Download) -> HaveChunks:
        bits = bits_of(download.here, len(download.hashes))
        return HaveChunks(self._part, download.base.round, download.base.root, bits)

    def _begin_to_tell(self, now: float, download: Download) -> list[Effect]:
        again = [] if self._is_telling else [self._wake("tell", TELLING)]
        self._is_telling = True
        download.sort(now, self._me, self._patience)
        return [*self._tell(download), *again]

    def _tell_again(self, now: float) -> list[Effect]:
        self._is_telling = self._download is not None
        if self._download is None:
            return []
        told = self._tell(self._download)
        if self._download.fellows or self._download.reserved:
            self._download.sort(now, self._me, self._patience)
        return [*told, self._wake("tell", TELLING), *self._ask_chunks(now, self._download)]

    def _receive_news(self, now: float, sender: PeerId, message: HaveChunks, download: Download) -> list[Effect]:
        if (message.round, message.root) != (download.base.round, download.base.root) or sender in self._liars:
            return []
        before = download.fellows.get(sender)
        if before is not None and not before.news.take(now):
            return []
        if sender in download.owing:  # what it says is not what it sends
            return []
        is_room = before is not None or len(download.fellows) < MAX_FELLOWS
        if sender in download.donors or not is_room or not self._view.is_alive(sender):
            return []
        has = set_of(message.chunks, len(download.hashes), sender)
        moved = before.moved if before is not None and len(has) <= len(before.has) else now
        spare = [index for index in download.unasked if index in has]
        news = before.news if before is not None else Allowance(*NEWS)
        download.fellows[sender] = Fellow(news, len(download.here), moved, has, spare)
        if is_new := before is None:
            download.sort(now, self._me, self._patience)
        return [*(self._tell(download) if is_new else ()), *self._ask_chunks(now, download)]

    def _has_come(self, sender: PeerId, message: GetStateChunk) -> bool:
        """Whether another joiner asks for what we have of the version that both of us download."""
        download = self._download
        is_ours = download is not None and download.base.round == message.round and sender in download.told
        return is_ours and download is not None and message.index in download.here

    def _replace_silent(self, now: float, download: Download) -> list[Effect]:
        """Ask others for the chunks of silent donors; begin anew if no donor is left."""
        is_first, patience = download.quickest is None, self._patience
        if is_first:
            download.most = 2 if now - download.begun[0] > patience else 1  # perhaps this one donor is silent
            patience = max(patience, FIRST_PATIENCE)
        for donor, at in list(download.asked.values()):
            if now - download.last_heard(donor, at) > patience or not self._view.is_alive(donor):
                download.give_up(donor)
        download.forget_debts(self._view.is_alive)
        if download.donors or download.is_complete:
            return self._ask_chunks(now, download)
        self._patience = patience
        return self._begin_anew(now)

    def _keep_leases(self, now: float, download: Download) -> list[Effect]:
        """Have the donors keep the version, also those that are asked for nothing for a while."""
        if now - download.renewed < RENEWING:
            return []
        download.renewed = now
        have = self._what_is_here(download)
        return [Send(peer, have) for peer in dict.fromkeys([*download.donors, *download.owing])]

    def _begin_anew(self, now: float) -> list[Effect]:
        """Begin anew, as nobody answers in time. Perhaps all links are slow, so the next try waits longer."""
        self._download, self._patience = None, min(MOST_PATIENCE, 2 * self._patience)
        return self._ask(now)

    def _wake(self, name: str, after: float = PATIENCE / 3) -> Wake:
        return Wake(after, Timer("transfer", name, self._token, str(self._part)))
