"""A search through all that can happen to a small group of voters, over the core of the log as it ships.

A state is what each peer's core and disk hold, and every message that was ever sent: messages may be delivered in any
order, any number of times, or never. A step delivers one, fires a timer, or has somebody want something; with
crashes, it ends right before or after any write to the disk, and the peer starts again from what it had written. Liars
have no core: whatever they can sign and put together is deliverable at any time.

States are interned as small integers and messages as bits, and what a core makes of an input is computed once.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import combinations

from shoal.protocol.base.effects import Effect, Persist, Send, Tell
from shoal.protocol.base.errors import RemoteError
from shoal.protocol.base.ids import PeerId
from shoal.protocol.base.signing import signed
from shoal.protocol.base.wire import Message
from shoal.protocol.log.certificate import certificate_of, decides, electorate, subject_of, votes_on
from shoal.protocol.log.core import Core, Review, binding, is_ground, proposer_of
from shoal.protocol.log.register import Rules, after, entry_digest, has_life, member_of, next_entry, voters_root
from shoal.protocol.messages.log import (
    ChangeView,
    Decided,
    Entry,
    GetLog,
    Lock,
    LogMessage,
    Propose,
    Register,
    Request,
    Subject,
    Vote,
    VoteFile,
)
from tests.simulation.promises import Violation
from tests.simulation.signing import FakeSigner


@dataclass(frozen=True, slots=True)
class Wish:
    """What `peer` wants decided; `body` makes it for a register, or gives None where it is no use."""

    peer: PeerId
    body: Callable[[Register], Message | None]


@dataclass(frozen=True, slots=True)
class World:
    """What is searched: who there is, what they want, and how much may happen."""

    rules: Callable[[PeerId], Rules]
    register: Register
    honest: tuple[PeerId, ...]
    wishes: tuple[Wish, ...]
    liars: tuple[PeerId, ...] = ()
    views: int = 2  # no timer fires in the last one
    entries: int = 2
    crashes: int = 0
    losses: int = 0  # crashes in which the vote file is lost
    expects: bool = True  # everybody waits for each entry; else timers run only where something is known to be wanted


@dataclass(frozen=True, slots=True)
class Node:
    """A peer: its core, and its disk."""

    core: Core
    log: tuple[Decided, ...]
    file: VoteFile


Parcel = tuple[PeerId, PeerId, LogMessage]  # to, from, what


@dataclass(frozen=True, slots=True)
class State:
    """Of the whole world: nodes by number, messages by bit."""

    nodes: tuple[int, ...]
    sent: int
    crashes: int
    losses: int
    wished: int  # bits of the wishes that were uttered


@dataclass
class Search:
    """Explores `world` from its beginning, or from where a script leads."""

    world: World
    seed: int = 0
    _nodes: dict[Node, int] = field(default_factory=dict)
    _all: list[Node] = field(default_factory=list)
    _parcels: dict[Parcel, int] = field(default_factory=dict)
    _list: list[Parcel] = field(default_factory=list)
    _for: dict[PeerId, int] = field(default_factory=dict)  # bits of the messages to each peer
    _memo: dict[tuple[int, int], tuple[tuple[int, int], ...]] = field(default_factory=dict)
    _crashed: dict[tuple[int, int, bool], tuple[tuple[int, int], ...]] = field(default_factory=dict)
    _lies: dict[tuple[frozenset[int], int], int] = field(default_factory=dict)

    def beginning(self) -> State:
        """Everybody has started."""
        world, sent = self.world, 0
        nodes = []
        for peer in world.honest:
            life = member_of(world.register, peer).life
            core = self._expecting(Core(peer, life, world.register, world.rules(peer)))
            file = VoteFile(life, voters_root(world.register), 0, 0, None, None)
            nodes.append(self._node(Node(core, (), file)))
        return State(tuple(nodes), sent, world.crashes, world.losses, 0)

    def explore(self, most: int, beginning: State | None = None, reached: list[State] | None = None) -> int:
        """Visit up to `most` distinct states, and check each; how many there were, and in `reached` which."""
        order = random.Random(self.seed)
        first = beginning or self.beginning()
        seen, stack = {first}, [first]
        while stack and len(seen) < most:
            state = stack.pop() if order.random() < DEPTH else _take(stack, order)
            steps = [(order.random() + late, each) for late, each in self.following(state) if each not in seen]
            for _, each in sorted(steps, key=lambda step: step[0], reverse=True):
                if each not in seen:
                    seen.add(each)
                    self.check(each)
                    stack.append(each)
                    if reached is not None:
                        reached.append(each)
        return len(seen)

    def following(self, state: State) -> Iterator[tuple[float, State]]:
        """The states one step away, each with how much later than others it is to be looked at, 0 to 1.

        Timers, crashes and lies come after what moves the log on: else nearly all that is seen is a run that stands.
        """
        lies = self._lies_in(state)
        for place, peer in enumerate(self.world.honest):
            for bit in _bits((state.sent | lies) & self._for.get(peer, 0)):
                late = LATEST if lies >> bit & 1 else 0.0
                yield from self._stepped(state, place, bit, late)
            core = self._all[state.nodes[place]].core
            if core.armed is not None and core.view + 1 < self.world.views:
                yield from self._stepped(state, place, TIMER, LATE)
        for number, wish in enumerate(self.world.wishes):
            if wish.peer in self.world.honest and not state.wished >> number & 1:
                place = self.world.honest.index(wish.peer)
                spoken = replace(state, wished=state.wished | 1 << number)
                yield from self._stepped(spoken, place, WISH - number, 0.0)

    @property
    def logs(self) -> set[tuple[Decided, ...]]:
        """The logs that peers have in the states that were looked at."""
        return {node.log for node in self._all}

    def node(self, state: State, peer: PeerId) -> Node:
        """What `peer` is in `state`."""
        return self._all[state.nodes[self.world.honest.index(peer)]]

    # -- steps --------------------------------------------------------------------------------------------------

    def deliver(self, state: State, sender: PeerId, to: PeerId, kind: type[LogMessage]) -> State:
        """For scripts: deliver the newest message of a kind that one peer has sent, or could send, to another."""
        fitting = [
            bit
            for bit in _bits((state.sent | self._lies_in(state)) & self._for.get(to, 0))
            if self._list[bit][1] == sender and isinstance(self._list[bit][2], kind)
        ]
        return self._plainly(state, to, fitting[-1])

    def wish(self, state: State, number: int) -> State:
        """For scripts: let a wish be uttered."""
        spoken = replace(state, wished=state.wished | 1 << number)
        return self._plainly(spoken, self.world.wishes[number].peer, WISH - number)

    def fire(self, state: State, peer: PeerId) -> State:
        """For scripts: a timer is due."""
        return self._plainly(state, peer, TIMER)

    def decide(self, state: State, by: int) -> State:
        """For scripts: until so many peers have decided a first entry, of those that were wished for, and no further.

        Liars vote as the others do, as there may be no quorum without them.
        """
        while sum(bool(self._all[number].log) for number in state.nodes) < by:
            before, state = state, self._helped(state) or self._waited(state)
            assert state != before, "nothing more happens here"
        return state

    def _helped(self, state: State) -> State | None:
        """One message has arrived that makes a difference; None if there is none."""
        said = set(self._subjects(_bits(state.sent)).values())
        lies = [bit for bit, subject in self._subjects(_bits(self._lies_in(state))).items() if subject in said]
        for bit in (*_bits(state.sent), *lies):
            later = self._plainly(state, self._list[bit][0], bit)
            if later != state:
                return later
        return None

    def _subjects(self, bits: Iterable[int]) -> dict[int, Subject]:
        """Those of these messages that are votes, and on what."""
        sent = {bit: self._list[bit][2] for bit in bits}
        return {bit: message.subject for bit, message in sent.items() if isinstance(message, Vote)}

    def _waited(self, state: State) -> State:
        """Timers have fired of those who have waited through the fewest views."""
        cores = [self._all[number].core for number in state.nodes]
        waiting = [core for core in cores if core.armed is not None and core.votes_here]
        for core in waiting:
            if core.view == min(each.view for each in waiting):
                state = self.fire(state, core.me)
        return state

    def _plainly(self, state: State, peer: PeerId, step: int) -> State:
        place = self.world.honest.index(peer)
        (node, sent), *_ = self._outcomes(state.nodes[place], step)
        return self._after(state, place, node, sent)

    def _stepped(self, state: State, place: int, step: int, late: float) -> Iterator[tuple[float, State]]:
        before = state.nodes[place]
        for node, sent in self._outcomes(before, step):
            if node != before or sent & ~state.sent:
                yield late, self._after(state, place, node, sent)
        for budget in ("crashes", "losses"):
            if left := getattr(state, budget):
                for node, sent in self._crashes(before, step, budget == "losses"):
                    after_it = self._after(state, place, node, sent)
                    yield LATE, replace(after_it, **{budget: left - 1})

    def _after(self, state: State, place: int, node: int, sent: int) -> State:
        nodes = (*state.nodes[:place], node, *state.nodes[place + 1 :])
        return replace(state, nodes=nodes, sent=state.sent | sent)

    def _outcomes(self, number: int, step: int) -> tuple[tuple[int, int], ...]:
        """The node after a step, with the messages that it has sent; nothing if the step is refused."""
        if (number, step) not in self._memo:
            node = self._all[number]
            made = self._work(node, step)
            self._memo[number, step] = ((number, 0),) if made is None else (self._kept(node, *made),)
        return self._memo[number, step]

    def _crashes(self, number: int, step: int, loses_file: bool) -> tuple[tuple[int, int], ...]:
        """The same where the peer dies before or after a write, and starts again."""
        key = (number, step, loses_file)
        if key not in self._crashed:
            node, made = self._all[number], self._work(self._all[number], step)
            effects = made[1] if made is not None else []
            ends = sorted(
                {end + more for end, each in enumerate(effects) if isinstance(each, Persist) for more in (0, 1)}
            )
            self._crashed[key] = tuple(self._restarted(node, effects[:end], loses_file) for end in ends)
        return self._crashed[key]

    def _restarted(self, node: Node, effects: Sequence[Effect], loses_file: bool) -> tuple[int, int]:
        log, file, sent = self._carried_out(node, effects)
        me = node.core.me
        rules = self.world.rules(me)
        register = self.world.register
        for decided in log:
            register = after(register, decided.entry, rules)
        if loses_file:
            file = VoteFile(file.life + 1000, voters_root(register), 0, 0, None, None)
        core, more = Core.resume(me, register, log, file, rules).start()
        core = self._expecting(core)
        place, later = self._kept(Node(core, log, file), core, more)
        return place, sent | later

    def _work(self, node: Node, step: int) -> tuple[Core, list[Effect]] | None:
        core = node.core
        if core.register.number >= self.world.entries and (step < 0 or not self._is_about_before(core, step)):
            return None
        try:
            if step == TIMER:
                assert core.armed is not None
                core, effects = core.fire(core.armed)
            elif step < 0:
                body = self.world.wishes[WISH - step].body(core.register)
                if body is None:
                    return None
                core, effects = core.submit(body)
                if not effects:
                    return None
            else:
                _, sender, message = self._list[step]
                core, effects = core.receive(sender, message)
        except RemoteError:
            return None
        core, effects = _reviewed(core, effects)
        if core.register.number > node.core.register.number:
            core = self._expecting(core)
        return core, effects

    def _expecting(self, core: Core) -> Core:
        return core.expect()[0] if self.world.expects else core

    def _is_about_before(self, core: Core, step: int) -> bool:
        """Whether a message is from somebody who is behind."""
        match self._list[step][2]:
            case GetLog():
                return True
            case ChangeView(number=number) | Propose(entry=Entry(number=number)):
                return number < core.number
            case Request(number=number):
                return number < core.register.number
            case Vote(subject=Subject(number=number)):
                return number < core.number
        return False

    def _kept(self, node: Node, core: Core, effects: Sequence[Effect]) -> tuple[int, int]:
        log, file, sent = self._carried_out(node, effects)
        return self._node(Node(core, log, file)), sent

    def _carried_out(self, node: Node, effects: Iterable[Effect]) -> tuple[tuple[Decided, ...], VoteFile, int]:
        log, file, sent = node.log, node.file, 0
        for effect in effects:
            match effect:
                case Persist(name="log", record=Decided() as decided):
                    log = (*log, decided)
                case Persist(name="vote", record=VoteFile() as file):
                    pass
                case Send(to=to, message=message) if to in self.world.honest:
                    sent |= 1 << self._parcel((to, node.core.me, message))  # type: ignore[arg-type]
        return log, file, sent

    # -- what must hold -----------------------------------------------------------------------------------------

    def check(self, state: State) -> None:
        """Violation unless every number has one value, which a quorum of those who vote after it holds."""
        nodes = [self._all[number] for number in state.nodes]
        values: dict[int, Entry] = {}
        for node in nodes:
            for decided in node.log:
                if values.setdefault(decided.entry.number, decided.entry) != decided.entry:
                    raise Violation("Agreement", f"two values of number {decided.entry.number}")
        for node in nodes:
            if node.log:
                self._check_held(node, nodes)

    def check_settles(self, state: State) -> None:
        """Violation unless, once all messages arrive and timers fire, everybody has the same log and wants nothing."""
        for _ in range(4 * len(self.world.honest)):
            state = self._delivered(state)
            cores = [self._all[number].core for number in state.nodes]
            members = [core for core in cores if has_life(core.register, core.me, core.life)]
            is_done = not any(core.wanted or (core.proposal and core.votes_here) for core in cores)
            if is_done and len({core.register for core in members}) == 1:
                return
            if all(core.number > self.world.entries for core in members):
                return
            state = self._waited(state)
        stand = [(core.me, core.number, core.view, len(core.wanted)) for core in cores]
        raise Violation("Termination", f"nothing comes of what is wanted: {stand}")

    def check_repeats(self, state: State) -> set[type[Message]]:
        """What kinds of messages would be repeated here, without wishes; Violation if one was never sent."""
        kinds = set[type[Message]]()
        for number in state.nodes:
            core = self._all[number].core
            for effect in core.repeat():
                match effect:
                    case Send(to=to, message=message) if to in self.world.honest and not isinstance(message, Request):
                        kinds.add(type(message))
                        bit = self._parcels.get((to, core.me, message))  # type: ignore[arg-type]
                        if bit is None or not state.sent >> bit & 1:
                            raise Violation("Repeats", f"{core.me} repeats to {to} what it has never said: {message}")
        return kinds

    def _delivered(self, state: State) -> State:
        """`state` after all messages have been delivered, those too that come of it."""
        before = None
        while state != before:
            before = state
            for place, peer in enumerate(self.world.honest):
                for bit in _bits(state.sent & self._for.get(peer, 0)):
                    ((node, sent),) = self._outcomes(state.nodes[place], bit)
                    state = self._after(state, place, node, sent)
        return state

    def _check_held(self, node: Node, nodes: Sequence[Node]) -> None:
        register, entry = node.core.register, node.log[-1].entry
        holding = {each.core.me for each in nodes if _holds(each, entry)} | set(self.world.liars)
        lost = {each.core.me for each in nodes if each.file.life >= 1000}
        rules = self.world.rules(node.core.me)
        if not lost and not rules.trust.is_quorum(holding, register.voters, register.faults):
            raise Violation("Held", f"number {entry.number} is decided, and no quorum of those after it holds it")

    # -- lies ---------------------------------------------------------------------------------------------------

    def _lies_in(self, state: State) -> int:
        """All that the liars can send to anybody here."""
        if not self.world.liars:
            return 0
        registers = frozenset(state.nodes)
        key = (registers, state.sent)
        if key not in self._lies:
            known: dict[Register, set[int]] = {}
            for number in state.nodes:
                core = self._all[number].core
                known.setdefault(core.register, set()).add(core.view)
            said = [self._list[bit][2] for bit in _bits(state.sent)]
            lies = [lie for register, views in known.items() for lie in self._lies_about(register, views, said)]
            bits = 0
            for to in self.world.honest:
                for liar, lie in lies:
                    bits |= 1 << self._parcel((to, liar, lie))
            self._lies[key] = bits
        return self._lies[key]

    def _lies_about(
        self, register: Register, views: set[int], said: Sequence[LogMessage]
    ) -> Iterator[tuple[PeerId, LogMessage]]:
        """All that makes a difference to voters in `views`; what is said of other views or entries is ignored."""
        if register.number >= self.world.entries:
            return
        liars = [liar for liar in self.world.liars if liar in register.voters]
        entries = self._entries(register)
        if not any(proposer_of(register, view) in liars for view in views):
            proposed = {each.entry for each in said if isinstance(each, Propose)}
            entries = [entry for entry in entries if entry in proposed]
        votes = [vote for liar in liars for vote in self._false_votes(liar, register, entries)]
        yield from ((vote.peer, vote) for vote in votes if vote.subject.view in views)
        votes += [each for each in said if isinstance(each, Vote)]
        locks = [None, *self._locks(register, entries, tuple(dict.fromkeys(votes)))]
        for view in range(1, self.world.views):
            false = [
                self._change(liar, register, view, lock)
                for liar in liars
                for lock in locks
                if lock is None or lock.view < view
            ]
            yield from ((change.peer, change) for change in false)
            if (proposer := proposer_of(register, view)) in liars:
                honest = [each for each in said if isinstance(each, ChangeView) and each.view == view]
                fitting = [each for each in honest if each.voters == voters_root(register)]
                yield from self._false_proposals(proposer, register, view, entries, [*fitting, *false])
        yield from (
            (liar, forged) for liar in liars for forged in self._forged(register, entries, tuple(dict.fromkeys(votes)))
        )
        if (proposer := proposer_of(register, 0)) in liars:
            yield from ((proposer, self._propose(proposer, register, 0, entry, ())) for entry in entries)

    def _false_proposals(
        self, liar: PeerId, register: Register, view: int, entries: Sequence[Entry], changes: Sequence[ChangeView]
    ) -> Iterator[tuple[PeerId, LogMessage]]:
        rules = self.world.rules(liar)
        least = next(
            size
            for size in range(len(register.voters) + 1)
            if rules.trust.is_quorum(register.voters[:size], register.voters, register.faults)
        )
        for grounds in combinations(dict.fromkeys(changes), least):
            if is_ground(grounds, register, rules) and len({each.peer for each in grounds}) == least:
                yield from ((liar, self._propose(liar, register, view, entry, grounds)) for entry in entries)

    def _false_votes(self, liar: PeerId, register: Register, entries: Sequence[Entry]) -> list[Vote]:
        rules, votes = self.world.rules(liar), []
        for entry in entries:
            changed = after(register, entry, rules)
            for view in range(self.world.views):
                for phase in rules.trust.phases:
                    subject = subject_of(register, changed, entry, view, phase)
                    life = member_of(register, liar).life
                    votes.append(signed(Vote(subject, liar, life, b""), rules.signer))
        return votes

    def _locks(self, register: Register, entries: Sequence[Entry], votes: Sequence[Vote]) -> Iterator[Lock]:
        rules = self.world.rules(self.world.liars[0])
        for phase in rules.trust.phases[:-1]:
            for entry in entries:
                changed = after(register, entry, rules)
                entitled = electorate(register, changed)
                for view in range(self.world.views - 1):
                    subject = subject_of(register, changed, entry, view, phase)
                    voted = [vote for vote in votes_on(subject, votes) if vote.peer in entitled]
                    if decides({vote.peer for vote in voted}, register, changed, rules):
                        yield Lock(view, entry, certificate_of(subject, voted))

    def _forged(self, register: Register, entries: Sequence[Entry], votes: Sequence[Vote]) -> Iterator[Decided]:
        """Decisions with all votes that there are in a view, be they a quorum or not."""
        rules = self.world.rules(self.world.liars[0])
        for entry in entries:
            changed = after(register, entry, rules)
            for view in range(self.world.views):
                subject = subject_of(register, changed, entry, view, rules.trust.phases[-1])
                if voted := votes_on(subject, votes):
                    yield Decided(entry, certificate_of(subject, voted))

    def _change(self, liar: PeerId, register: Register, view: int, lock: Lock | None) -> ChangeView:
        life = member_of(register, liar).life
        number, root = register.number + 1, voters_root(register)
        change = ChangeView(register.branch, number, view, root, lock, liar, life, b"")
        return signed(change, self.world.rules(liar).signer)

    def _propose(
        self, liar: PeerId, register: Register, view: int, entry: Entry, grounds: tuple[ChangeView, ...]
    ) -> Propose:
        life = member_of(register, liar).life
        return signed(
            Propose(view, entry, binding(grounds, entry.number) is not None, grounds, liar, life, b""),
            self.world.rules(liar).signer,
        )

    def _entries(self, register: Register) -> list[Entry]:
        """All that anybody may want next."""
        rules, entries = self.world.rules(self.world.honest[0]), {}
        for wish in self.world.wishes:
            body = wish.body(register)
            if body is not None:
                entry = next_entry(register, body)
                try:
                    after(register, entry, rules)
                except RemoteError:
                    continue
                entries[entry_digest(entry)] = entry
        return list(entries.values())

    # -- interning ----------------------------------------------------------------------------------------------

    def _node(self, node: Node) -> int:
        if node not in self._nodes:
            self._nodes[node] = len(self._all)
            self._all.append(node)
        return self._nodes[node]

    def _parcel(self, parcel: Parcel) -> int:
        if parcel not in self._parcels:
            bit = self._parcels[parcel] = len(self._list)
            self._list.append(parcel)
            self._for[parcel[0]] = self._for.get(parcel[0], 0) | 1 << bit
        return self._parcels[parcel]


DEPTH = 0.9  # of all states, this share is looked at right after the one before it
LATE, LATEST = 0.5, 0.55
TIMER, WISH = -1, -2  # steps that are no message; the wish with number n is WISH - n


def _reviewed(core: Core, effects: list[Effect]) -> tuple[Core, list[Effect]]:
    """What becomes of it once the application has let the peer vote for all that it was asked about."""
    done = 0
    while done < len(effects):
        match effects[done]:
            case Tell(event=Review(entry=entry)):
                core, more = core.answer(entry_digest(entry), True)
                effects = [*effects, *more]
        done += 1
    return core, effects


def _holds(node: Node, entry: Entry) -> bool:
    said = [node.file.voted.entry] if node.file.voted is not None else []
    return entry in [*said, *(decided.entry for decided in node.log)]


def _take(stack: list[State], order: random.Random) -> State:
    place = order.randrange(len(stack))
    stack[place], stack[-1] = stack[-1], stack[place]
    return stack.pop()


def _bits(number: int) -> Iterator[int]:
    while number:
        lowest = number & -number
        yield lowest.bit_length() - 1
        number ^= lowest


@cache
def rules_of(trust: type, peer: PeerId) -> Rules:
    """Rules under which `peer` signs."""
    return Rules(trust(), FakeSigner(peer))
