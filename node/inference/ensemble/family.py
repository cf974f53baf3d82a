"""A family of experts as something to serve: those whose files are here are opened, others are asked over the network.

Rules:
- Of each part the furthest file is taken that is here, or that any peer answers for; one that is no model of the part
  is passed over. A part that cannot be had is left out until it can, and is missing by name in /v1/models; what there
  is, is looked at again every LOOK seconds.
- Vocabulary and context are those of the family's manifest, so they hold for experts that are yet to come.
- The node has the connections: this process talks to it alone. While the node is away, experts on other peers are lost
  to the texts under way, and those that are here go on.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from threading import Semaphore

from shoal.node.base.home import Home
from shoal.node.experts.files import read_parameters
from shoal.node.experts.posterior import uniform
from shoal.node.inference.chat import PlainChat
from shoal.node.inference.ensemble.ensemble import Ensemble
from shoal.node.inference.ensemble.mix import parse_mix
from shoal.node.inference.ensemble.panel import Member, Panel, changes, foreseen, prior_of, windows_of
from shoal.node.inference.models import check_writes, expert_of, run_vocabulary, side_by_side
from shoal.node.inference.remote.asking.expert import Background, RemoteExpert
from shoal.node.inference.remote.connection import NodeConnection
from shoal.node.inference.remote.sources import File, Node, Part, path_of
from shoal.node.inference.scorer import Expert, LogProbs, Piece, Weighed
from shoal.node.inference.served import HERE, Choices, Served
from shoal.node.manifest.experts import MAX_PARTS
from shoal.protocol.base.errors import LocalError, ShoalError
from shoal.protocol.base.ids import PeerId

LOOK = 5.0  # seconds
REST = 60.0  # seconds for which an expert that could not be used is left alone
PEERS = "peers"

log = logging.getLogger("shoal.serve")


class InTurn:
    """See Expert: one that computes here, once it has a turn."""

    def __init__(self, expert: Expert, turns: Semaphore) -> None:
        self._expert, self._turns = expert, turns
        self.vocab, self.limit, self.slots, self.version = expert.vocab, expert.limit, expert.slots, expert.version

    def extend(self, pieces: Sequence[Piece]) -> LogProbs:
        """See Scorer."""
        with self._turns:
            return self._expert.extend(pieces)

    def weigh(self, pieces: Sequence[Piece]) -> Weighed:
        """See Expert."""
        with self._turns:
            return self._expert.weigh(pieces)

    def end(self, slot: int) -> None:
        """See Scorer."""
        self._expert.end(slot)


class FamilyLoader:
    """Of one family, as its owner has chosen to mix it."""

    def __init__(self, node: Node, choices: Choices) -> None:
        """LocalError unless the node is in the family, and its tokens are to be had."""
        self._node, self._choices = node, choices
        self.mix = parse_mix(choices.mix)
        if choices.prefer not in (HERE, PEERS):
            raise LocalError(f"--prefer {choices.prefer} is unknown: say {HERE} or {PEERS}")
        if self.mix.is_merge or choices.base:
            raise LocalError("merging needs all files: `shoal experts fetch` the family into a folder, and serve that")
        sources = node.sources()
        self.manifest = sources.manifest
        check_writes(self.manifest.model)
        self.vocab, self.limit = _agreed(sources.parts)
        self.vocabulary = run_vocabulary(self.manifest, node.home.runs, choices.tokenizer)
        self._windows = windows_of(choices.prior, self.vocabulary, self.limit) if choices.prior else ()
        self._background = Background()
        self._connection = NodeConnection(node.socket)
        self._turns = Semaphore(side_by_side())
        self._refused: dict[str, float] = {}  # until when those that could not be used are left alone, by keys

    def load(self, known: Sequence[Member] = ()) -> Panel:
        """The experts that there are now; LocalError if there are none. `known` are members that may be kept."""
        loaded = {each.key: each for each in known}
        parts = self._node.sources().parts
        found = {part.part: self._member(part, loaded) for part in parts}
        members = [member for member in found.values() if member is not None]
        if not members:
            raise LocalError(
                f"nobody answers for an expert of {self.manifest.name}, and none of their files is here: run "
                f"`shoal experts answer` on a node that has one"
            )
        prior = prior_of([each.foreseen for each in members]) if self._windows else uniform(len(members))
        return Panel(tuple(members), prior, self.mix.k, tuple(name for name, member in found.items() if member is None))

    def _member(self, part: Part, loaded: dict[str, Member]) -> Member | None:
        """With the furthest file that can be used; None if there is none."""
        for file in part.files:
            can_be_had = file.path is not None or file.peers
            if can_be_had and (member := self._with(part, file, loaded)) is not None:
                return member
        return None

    def _with(self, part: Part, file: File, loaded: dict[str, Member]) -> Member | None:
        is_here = file.path is not None and not (self._choices.prefer == PEERS and file.peers)
        key = f"{part.part} {file.file} {HERE if is_here else PEERS}"
        member = loaded.get(key)
        if member is None:
            if time.monotonic() < self._refused.get(key, 0.0):
                return None
            try:
                expert = self._opened(part, file) if is_here else self._asked(part, file)
                member = Member(part.part, key, expert, foreseen(expert, self._windows))
            except ShoalError as error:
                self._refused[key] = time.monotonic() + REST
                log.warning("the expert %s of round %d cannot be used: %s", part.part, file.round, error)
                return None
        if isinstance(member.expert, RemoteExpert):
            member.expert.answered_by([PeerId(peer) for peer in file.peers])
        return member

    def _opened(self, part: Part, file: File) -> Expert:
        theta = read_parameters(path_of(file), part.model)
        return InTurn(expert_of(part.model, theta, self._choices, file.file[:16]), self._turns)

    def _asked(self, part: Part, file: File) -> RemoteExpert:
        choices = self._choices
        expert = RemoteExpert(
            file.digest,
            self._connection,
            self._background,
            vocab=part.model.vocab,
            limit=part.model.context,
            slots=choices.slots,
            patience=choices.patience,
        )
        expert.answered_by([PeerId(peer) for peer in file.peers])
        return expert


def open_family(home: Home, family: str, choices: Choices) -> Served:
    """The experts of a family that this machine's node is in; LocalError if they cannot be served as it was chosen."""
    loader = FamilyLoader(Node(home, family), choices)
    scorer = Ensemble(loader.load(), limit=loader.limit, slots=choices.slots, mix=loader.mix.name, at_once=MAX_PARTS)

    looking = threading.Lock()  # the owner may ask for a look while another is under way

    def look_again() -> str:
        with looking:
            before = scorer.panel
            after = loader.load(before.members)
            scorer.take(after)
            return changes(before.names, after.names)

    return Served(
        name=loader.manifest.name,
        scorer=scorer,
        vocabulary=loader.vocabulary,
        chat=PlainChat(),
        created=int(time.time()),
        sentence=f"the family {loader.manifest.name}, mixed by {loader.mix.name}",
        look_again=look_again,
        follow=partial(_keep_looking, scorer, look_again),
    )


def _keep_looking(scorer: Ensemble, look_again: Callable[[], str], over: threading.Event) -> None:
    """Until that is set; in a thread of its own."""
    said = ""
    while not over.wait(LOOK):
        before = scorer.panel.version
        try:
            words = look_again()
            if scorer.panel.version != before:
                log.warning("%s", words)
            said = ""
        except ShoalError as error:
            if str(error) != said:
                said = str(error)
                log.warning("the experts stay as they were: %s", error)
        except Exception:  # of a library, out of memory: what is served is whole
            log.exception("the experts stay as they were")


def _agreed(parts: Sequence[Part]) -> tuple[int, int]:
    """Vocabulary and context of all; LocalError if they have several vocabularies."""
    vocabularies = {part.model.vocab for part in parts}
    if len(vocabularies) > 1:
        raise LocalError("the family's experts have different tokens: they cannot be mixed")
    return vocabularies.pop(), min(part.model.context for part in parts)
