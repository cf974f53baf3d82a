"""Serves a family of experts: experts whose files are here are opened, the others are asked over the network.

Rules:
- Of each part the furthest file is used that is here, or that a peer answers for; a file that is not a model of the
  part is skipped. A part without a usable file is left out, and /v1/models names it as missing. All files are looked
  for again every LOOK seconds.
- Vocabulary and context are those of the family's manifest, so they also hold for experts that come later.
- This process talks to this machine's node only, which has the connections with peers. While the node is away, texts
  lose the experts on other peers, and go on with those that are here.
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
from shoal.node.inference.ensemble.panel import Member, Panel, log_likelihoods, prior_of, windows_of
from shoal.node.inference.models import check_writes, expert_of, models_at_once, run_vocabulary
from shoal.node.inference.remote.asking.expert import Background, RemoteExpert
from shoal.node.inference.remote.connection import NodeConnection
from shoal.node.inference.remote.sources import File, Node, Part, path_of
from shoal.node.inference.scorer import Piece, Predictions, Scorer
from shoal.node.inference.served import HERE, Served, ServeOptions, parse_mix
from shoal.node.manifest.experts import MAX_PARTS
from shoal.protocol.base.errors import LocalError, ShoalError
from shoal.protocol.base.ids import PeerId

LOOK = 5.0  # seconds
REST = 60.0  # seconds until an expert that could not be used is tried again
PEERS = "peers"

log = logging.getLogger("shoal.serve")


class InTurn(Scorer):
    """An expert that computes on this machine: it waits for a turn, of which there are as many as the cores allow."""

    def __init__(self, expert: Scorer, turns: Semaphore) -> None:
        self._expert, self._turns = expert, turns
        self.vocab, self.limit, self.slots, self.version = expert.vocab, expert.limit, expert.slots, expert.version

    def extend(self, pieces: Sequence[Piece], within: bool = False) -> Predictions:
        """See Scorer."""
        with self._turns:
            return self._expert.extend(pieces, within)

    def end(self, slot: int) -> None:
        """See Scorer."""
        self._expert.end(slot)


class FamilyLoader:
    """Makes panels of one family's experts, by the user's options."""

    def __init__(self, node: Node, options: ServeOptions) -> None:
        """LocalError if the node is not in the family, or the tokenizer is not available."""
        self._node, self._options = node, options
        self.mix = parse_mix(options.mix)
        if options.prefer not in (HERE, PEERS):
            raise LocalError(f"--prefer {options.prefer} is unknown: say {HERE} or {PEERS}", code="unknown-name")
        if self.mix.is_merge or options.base:
            raise LocalError(
                "merging needs all files: `shoal experts fetch` the family into a folder, and serve that",
                code="bad-flags",
            )
        sources = node.sources()
        self.manifest = sources.manifest
        check_writes(self.manifest.model)
        self.limit = _common_context(sources.parts)
        self.vocabulary = run_vocabulary(self.manifest, node.home.runs, options.tokenizer)
        self._windows = windows_of(options.prior, self.vocabulary, self.limit) if options.prior else ()
        self._background = Background()
        self._connection = NodeConnection(node.socket)
        self._turns = Semaphore(models_at_once())
        self._refused: dict[str, float] = {}  # by key, the time until which an unusable expert is not tried again

    def load(self, known: Sequence[Member] = ()) -> Panel:
        """A panel of the experts that are available now; LocalError if none is. Members of `known` are used again."""
        loaded = {each.key: each for each in known}
        parts = self._node.sources().parts
        found = {part.part: self._member(part, loaded) for part in parts}
        members = [member for member in found.values() if member is not None]
        if not members:
            raise LocalError(
                f"nobody answers for an expert of {self.manifest.name}, and none of their files is here: run "
                f"`shoal experts answer` on a node that has one",
                code="experts-nowhere",
            )
        prior = prior_of([each.likelihoods for each in members]) if self._windows else uniform(len(members))
        return Panel(tuple(members), prior, self.mix.k, tuple(name for name, member in found.items() if member is None))

    def _member(self, part: Part, loaded: dict[str, Member]) -> Member | None:
        """The part's expert with the furthest file that can be used; None if there is none."""
        for file in part.files:
            is_available = file.path is not None or file.peers
            if is_available and (member := self._with(part, file, loaded)) is not None:
                return member
        return None

    def _with(self, part: Part, file: File, loaded: dict[str, Member]) -> Member | None:
        is_here = file.path is not None and not (self._options.prefer == PEERS and file.peers)
        key = f"{part.part} {file.file} {HERE if is_here else PEERS}"
        member = loaded.get(key)
        if member is None:
            if time.monotonic() < self._refused.get(key, 0.0):
                return None
            try:
                expert = self._opened(part, file) if is_here else self._remote(part, file)
                member = Member(part.part, key, expert, log_likelihoods(expert, self._windows))
            except ShoalError as error:
                self._refused[key] = time.monotonic() + REST
                log.warning(
                    "the expert %s of round %d cannot be used: %s",
                    part.part,
                    file.round,
                    error,
                    extra={"code": "expert-unusable"},
                )
                return None
        if isinstance(member.expert, RemoteExpert):
            member.expert.answered_by([PeerId(peer) for peer in file.peers])
        return member

    def _opened(self, part: Part, file: File) -> Scorer:
        theta = read_parameters(path_of(file), part.model)
        return InTurn(expert_of(part.model, theta, self._options, file.file[:16]), self._turns)

    def _remote(self, part: Part, file: File) -> RemoteExpert:
        options = self._options
        expert = RemoteExpert(
            file.digest,
            self._connection,
            self._background,
            vocab=part.model.vocab,
            limit=part.model.context,
            slots=options.slots,
            patience=options.patience,
        )
        expert.answered_by([PeerId(peer) for peer in file.peers])
        return expert


def open_family(home: Home, family: str, options: ServeOptions) -> Served:
    """The experts of a family that this machine's node is in; LocalError if these options do not allow it."""
    loader = FamilyLoader(Node(home, family), options)
    scorer = Ensemble(loader.load(), limit=loader.limit, slots=options.slots, mix=loader.mix.name, at_once=MAX_PARTS)
    look_again = partial(scorer.reload, loader.load)
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
    """Look for files again and again until `over` is set; runs in its own thread."""
    said = ""
    while not over.wait(LOOK):
        before = scorer.panel.version
        try:
            words = look_again()
            if scorer.panel.version != before:
                log.warning("%s", words, extra={"code": "experts-changed"})
            said = ""
        except ShoalError as error:
            if str(error) != said:
                said = str(error)
                log.warning("the experts stay as they were: %s", error, extra={"code": "reload-failed"})
        except Exception:  # such as no memory, or a library's error: the experts that are served are whole
            log.exception("the experts stay as they were")


def _common_context(parts: Sequence[Part]) -> int:
    """The context that all parts' models have; LocalError if their vocabularies differ."""
    if len({part.model.vocab for part in parts}) > 1:
        raise LocalError("the family's experts have different tokens: they cannot be mixed", code="experts-differ")
    return min(part.model.context for part in parts)
