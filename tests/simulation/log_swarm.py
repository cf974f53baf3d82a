"""A swarm that keeps an agreed log, on a simulated clock, network and disks, all from one seed.

Messages are late, lost and repeated; networks are cut in two; processes are killed, machines lose power, and with it
what was not forced to disk, a journal loses a bit or is deleted. Peers want to be admitted, to vote, to leave, and to
have the dead removed. What must hold is checked with every decision, and at the end, when all faults are over.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count

from shoal.protocol.base.effects import Effect, Persist, Send, Tell, Timer, Wake
from shoal.protocol.base.errors import LocalError, RemoteError
from shoal.protocol.base.ids import NO_DIGEST, Digest, PeerId
from shoal.protocol.base.signing import signed
from shoal.protocol.base.wire import Message, encode
from shoal.protocol.log.core import Core, EntryDecided, Review
from shoal.protocol.log.journal import framed, read
from shoal.protocol.log.register import (
    entry_digest,
    first_state,
    has_life,
    is_voter,
    member_of,
    voters_root,
)
from shoal.protocol.messages.log import (
    AddVoters,
    Admit,
    Asks,
    Consent,
    Entry,
    Leave,
    Register,
    Remove,
    Result,
    Roster,
    Seat,
    Unheard,
    VoteFile,
)
from tests.simulation.log_search import rules_of
from tests.simulation.promises import Violation
from tests.simulation.signing import FakeSigner

MOST_SEATED = 3
REPEATED = 5.0  # seconds after which a peer says again what it has said
CALM = 600.0  # seconds after the last fault in which all that is wanted must be decided


@dataclass(frozen=True, slots=True)
class Weather:
    """How bad it is. Probabilities are per message, rates per second of the whole swarm."""

    delay: tuple[float, float] = (0.005, 0.05)  # seconds
    loss: float = 0.05
    repeats: float = 0.05
    fsync: tuple[float, float] = (0.0005, 0.02)  # seconds
    kills: float = 0.05
    power_cuts: float = 0.03
    cuts: float = 0.02
    damages: int = 0  # journals that lose a bit or everything, in all
    down: tuple[float, float] = (0.5, 20.0)  # seconds
    wishes: float = 0.5
    seconds: float = 120.0


PEACE = Weather(loss=0, repeats=0, kills=0, power_cuts=0, cuts=0)


@dataclass
class Machine:
    """A peer's process and its disk; `core` is None while it is down."""

    peer: PeerId
    core: Core | None
    disk: bytearray = field(default_factory=bytearray)
    forced: int = 0  # bytes of the disk that a power cut spares
    boot: int = 0
    busy_until: float = 0.0  # the disk's writer works until then


class LogSwarm:
    """So many voters and other members, under one weather."""

    def __init__(self, register: Register, trust: type, weather: Weather, seed: int, gossips: bool = True) -> None:
        self.random = random.Random(seed)
        self.trust, self.weather, self.first = trust, weather, register
        self.now = 0.0
        self.messages = self.bytes = 0
        self.decided: dict[int, Entry] = {}
        self.decided_everywhere_at: dict[int, float] = {}  # or rather by whoever decided it last
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._gossips = gossips
        self._apart: frozenset[PeerId] = frozenset()
        self._damages = weather.damages
        self._wanted: list[Asks] = []
        self._names = count(1)
        self.machines: dict[PeerId, Machine] = {}
        for member in register.members:
            machine = self.machines[member.peer] = Machine(member.peer, None)
            self._begin_disk(machine, member.life)
            self._start(machine)

    # -- the run ------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Live through the weather, then through calm, and check what must hold."""
        weather = self.weather
        for rate, act in (
            (weather.kills, self._kill),
            (weather.power_cuts, self._cut_power),
            (weather.cuts, self._cut_network),
            (weather.wishes, self._wish),
        ):
            self._repeat(rate, act)
        self.pass_until(weather.seconds)
        self._apart = frozenset()
        for machine in self.machines.values():
            if machine.core is None:
                self._start(machine)
        self.pass_until(weather.seconds + CALM)
        self._check_end()

    def after(self, seconds: float, act: Callable[[], None]) -> None:
        """Have `act` called so many seconds from now."""
        heapq.heappush(self._events, (self.now + seconds, next(self._order), act))

    def submit(self, peer: PeerId, body: Message) -> None:
        """Let `peer` want something, if it is up and it fits."""
        core = self.machines[peer].core
        if core is not None:
            with suppress(RemoteError, LocalError):  # it knows a newer register than whoever thought of this
                self._do(self.machines[peer], core.submit(body))

    def want_a_guest(self) -> None:
        """Let the first peer want somebody admitted, now."""
        first = next(iter(self.machines.values()))
        body = self._newcomer(first.core) if first.core is not None else None
        if body is not None:
            self.submit(first.peer, body)

    def pass_until(self, end: float) -> None:
        """Let everything happen that is due until then."""
        while self._events and self._events[0][0] <= end:
            self.now, _, act = heapq.heappop(self._events)
            act()
        self.now = end

    def _repeat(self, rate: float, act: Callable[[], None]) -> None:
        if not rate:
            return

        def again() -> None:
            if self.now < self.weather.seconds:
                act()
                self.after(self.random.expovariate(rate), again)

        self.after(self.random.expovariate(rate), again)

    # -- machines -----------------------------------------------------------------------------------------------

    def _begin_disk(self, machine: Machine, life: int) -> None:
        votes = VoteFile(life, voters_root(self.first), 0, 0, None, None)
        machine.disk = bytearray(framed(self.first) + framed(votes))
        machine.forced = len(machine.disk)

    def _start(self, machine: Machine) -> None:
        rules = rules_of(self.trust, machine.peer)
        journal = read(bytes(machine.disk), rules)
        register, votes = journal.register or self.first, journal.votes
        del machine.disk[journal.length :]
        if votes is None or journal.register is None:  # another life
            votes = VoteFile(self._later_life(), voters_root(register), 0, 0, None, None)
            machine.disk += framed(votes) if journal.register else framed(register) + framed(votes)
        machine.forced = len(machine.disk)
        machine.boot += 1
        machine.busy_until = self.now
        machine.core = Core.resume(machine.peer, register, journal.entries, votes, rules)
        self._do(machine, machine.core.start())
        self._look_around(machine, machine.boot)
        self.after(REPEATED, lambda boot=machine.boot: self._say_again(machine, boot))  # type: ignore[misc]

    def _later_life(self) -> int:
        return 1000 + int(1000 * self.now)

    def _look_around(self, machine: Machine, boot: int) -> None:
        """What a member of the swarm hears by gossip: who is at which number. It asks to be admitted if it is not."""
        core = machine.core
        if core is None or machine.boot != boot or not self._gossips:
            return
        up = [each for each in self.machines.values() if each.core is not None and self._reaches(machine, each)]
        other = self.random.choice(up)
        if other.core is not None and other is not machine:
            self._do(machine, core.hear_of(other.peer, other.core.register.number))
        self._ask_to_be_let_in(machine)
        self.after(self.random.uniform(1, 3), lambda: self._look_around(machine, boot))

    def _say_again(self, machine: Machine, boot: int) -> None:
        if machine.core is not None and machine.boot == boot:
            self._do(machine, (machine.core, machine.core.repeat()))
            self.after(REPEATED, lambda: self._say_again(machine, boot))

    def _ask_to_be_let_in(self, machine: Machine) -> None:
        core = machine.core
        if core is not None and not has_life(core.register, machine.peer, core.life):
            asks = Asks(core.register.branch, machine.peer, core.life, False, b"")
            self.submit(machine.peer, Admit((signed(asks, core.rules.signer),)))

    def _down(self, machine: Machine) -> None:
        machine.core = None
        boot = machine.boot

        def up() -> None:
            if machine.core is None and machine.boot == boot:
                self._start(machine)

        self.after(self.random.uniform(*self.weather.down), up)

    def _kill(self) -> None:
        """The process ends; what it has written, the system still writes to disk, a last record perhaps in part."""
        machine = self._any_up()
        if machine is not None:
            machine.forced = self.random.randint(machine.forced, len(machine.disk))
            del machine.disk[machine.forced :]
            self._down(machine)

    def _cut_power(self) -> None:
        """Everybody in one place loses power: what was not forced to disk is lost."""
        for machine in self.random.sample(list(self.machines.values()), self.random.randint(1, len(self.machines))):
            if machine.core is not None:
                del machine.disk[machine.forced :]
                self._down(machine)
                self._damage(machine)

    def _damage(self, machine: Machine) -> None:
        if self._damages and self.random.random() < 0.5:
            self._damages -= 1
            if self.random.random() < 0.5:
                machine.disk.clear()
            else:
                machine.disk[self.random.randrange(len(machine.disk))] ^= 1 << self.random.randrange(8)

    def _any_up(self) -> Machine | None:
        up = [machine for machine in self.machines.values() if machine.core is not None]
        return self.random.choice(up) if up else None

    # -- effects ------------------------------------------------------------------------------------------------

    def _do(self, machine: Machine, made: tuple[Core, list[Effect]]) -> None:
        """Carry out effects in order: what comes after a write leaves when it is on the disk."""
        machine.core, effects = made
        boot = machine.boot
        at = max(self.now, machine.busy_until)
        for effect in effects:
            match effect:
                case Persist(record=record):
                    machine.disk += framed(record)
                    at += self.random.uniform(*self.weather.fsync)
                    machine.busy_until = at
                    self.after(at - self.now, partial(self._force, machine, boot, len(machine.disk)))
                case _:
                    self.after(at - self.now, partial(self._carry_out, machine, boot, effect))

    def _force(self, machine: Machine, boot: int, length: int) -> None:
        if machine.boot == boot and machine.core is not None:
            machine.forced = max(machine.forced, length)

    def _carry_out(self, machine: Machine, boot: int, effect: Effect) -> None:
        core = machine.core
        if machine.boot != boot or core is None:
            return
        match effect:
            case Send(to=to, message=message):
                self._send(machine, to, message)
            case Wake(after=seconds, timer=timer):
                self.after(seconds, lambda: self._fire(machine, boot, timer))
            case Tell(event=Review(entry=entry)):
                self._do(machine, core.answer(entry_digest(entry), True))
            case Tell(event=EntryDecided(entry=entry)):
                self._note(entry)

    def _fire(self, machine: Machine, boot: int, timer: Timer) -> None:
        if machine.boot == boot and machine.core is not None:
            self._do(machine, machine.core.fire(timer))

    def _send(self, machine: Machine, to: PeerId, message: Message) -> None:
        self.messages += 1
        self.bytes += len(encode(message))
        if to not in self.machines or not self._reaches(machine, self.machines[to]):
            return
        calm = self.now >= self.weather.seconds
        if not calm and self.random.random() < self.weather.loss:
            return
        copies = 1 + (not calm and self.random.random() < self.weather.repeats)
        for _ in range(copies):
            self.after(self.random.uniform(*self.weather.delay), lambda: self._arrive(machine.peer, to, message))

    def _arrive(self, sender: PeerId, to: PeerId, message: Message) -> None:
        machine = self.machines[to]
        if machine.core is not None:
            self._do(machine, machine.core.receive(sender, message))  # type: ignore[arg-type]  # only cores send

    def _reaches(self, one: Machine, other: Machine) -> bool:
        return (one.peer in self._apart) == (other.peer in self._apart)

    def _cut_network(self) -> None:
        peers = list(self.machines)
        self._apart = frozenset(self.random.sample(peers, self.random.randint(1, len(peers))))
        self.after(self.random.uniform(*self.weather.down), lambda: setattr(self, "_apart", frozenset()))

    # -- wishes -------------------------------------------------------------------------------------------------

    def _wish(self) -> None:
        machine = self._any_up()
        if machine is None or machine.core is None:
            return
        wish = self.random.choice((self._newcomer, self._voter, self._leave, self._remove, self._roster))
        body = wish(machine.core)
        if body is not None:
            self.submit(machine.peer, body)

    def _newcomer(self, core: Core) -> Message | None:
        """Somebody asks this peer to be admitted, and is never seen; a few may."""
        if len(core.register.members) > len(self.machines) + 5:
            return None
        peer = PeerId(f"guest {next(self._names)}")
        asks = Asks(core.register.branch, peer, 1, False, b"")
        return Admit((signed(asks, FakeSigner(peer)),))

    def _voter(self, core: Core) -> Message | None:
        register = core.register
        consents = []
        for machine in self.machines.values():
            other = machine.core
            if other is None or other.register.tip not in register.tips or machine.peer in register.voters:
                continue
            if has_life(register, machine.peer, other.life):
                consent = Consent(register.branch, other.register.tip, machine.peer, other.life, b"")
                consents.append(signed(consent, FakeSigner(machine.peer)))
        return AddVoters(tuple(consents[:1]), ()) if consents else None

    def _leave(self, core: Core) -> Message | None:
        """A guest or a voter goes; of voters never so many that a fault could stop the rest for good."""
        register = core.register
        going = [
            member.peer
            for member in register.members
            if member.peer not in self.machines or (member.peer in register.voters and len(register.voters) > 3)
        ]
        if not going:
            return None
        peer = self.random.choice(going)
        asks = Asks(register.branch, peer, member_of(register, peer).life, True, b"")
        return Leave(signed(asks, FakeSigner(peer)))

    def _remove(self, core: Core) -> Message | None:
        """The voters that are up say that they have not heard one that is down."""
        register = core.register
        down = [peer for peer in register.voters if peer in self.machines and self.machines[peer].core is None]
        if not down or len(register.voters) <= 3:
            return None
        absent = self.random.choice(down)
        life = member_of(register, absent).life
        unheard = []
        for peer in register.voters:
            witness = self.machines[peer].core if peer in self.machines else None
            if witness is not None and witness.register.tip in register.tips and is_voter(register, peer, witness.life):
                said = Unheard(register.branch, witness.register.tip, absent, life, peer, witness.life, b"")
                unheard.append(signed(said, FakeSigner(peer)))
        return Remove(absent, life, tuple(unheard), ())

    def _roster(self, core: Core) -> Message | None:
        """Somebody takes part in the rounds, too; or the round is over, which counts nobody."""
        register = core.register
        part = register.parts[0] if register.parts else first_state(0)
        seated = [seat.peer for seat in part.roster]
        others = [each.peer for each in register.members if each.peer not in seated]
        if others and len(seated) < MOST_SEATED:
            return Roster(0, (*part.roster, Seat(self.random.choice(others), 1)))
        return Result(0, part.round + 1, part.result, NO_DIGEST, NO_DIGEST, b"", (), (Seat(core.me, 1),))

    # -- what must hold -----------------------------------------------------------------------------------------

    def _note(self, entry: Entry) -> None:
        if self.decided.setdefault(entry.number, entry) != entry:
            raise Violation("Agreement", f"two values of number {entry.number}")
        self.decided_everywhere_at[entry.number] = self.now

    def _check_end(self) -> None:
        registers = {machine.core.register for machine in self.machines.values() if machine.core is not None}
        numbers = sorted(register.number for register in registers)
        if len(registers) != 1:
            raise Violation("Termination", f"long after the last fault members stand at {numbers}")
        (register,) = registers
        if max(self.decided, default=0) > register.number:
            raise Violation("Held", f"number {max(self.decided)} was decided, and the log ends with {register.number}")
        self._check_goes_on(register)

    def _check_goes_on(self, register: Register) -> None:
        """Whoever is admitted now is a member everywhere soon, and then nothing more is said."""
        peer = PeerId("last guest")
        asks = signed(Asks(register.branch, peer, 1, False, b""), FakeSigner(peer))
        self.submit(next(iter(self.machines)), Admit((asks,)))
        self.pass_until(self.now + CALM)
        cores = [machine.core for machine in self.machines.values() if machine.core is not None]
        if not all(has_life(core.register, peer, 1) for core in cores):
            raise Violation("Termination", "what is wanted in a calm swarm is not decided")
        if pending := [core.me for core in cores if core.wanted or core.armed]:
            raise Violation("Quiet", f"{pending} still want something, or wait for it")


def digests(swarm: LogSwarm) -> list[Digest]:
    """What was decided, in order: the same for the same seed."""
    return [entry_digest(swarm.decided[number]) for number in sorted(swarm.decided)]
