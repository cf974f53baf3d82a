"""A run that goes on, as something to serve: the newest committed weights for each new text, the old ones for others.

`LiveScorer` is several versions of one model as one scorer. Its rules:
- A sequence belongs to the newest version there is when its first tokens are read, and to no other until it ends: so
  its keys and values are never those of other weights. A step calls each version that has sequences in it once.
- At most `MOST` versions are here at once. Each is a whole set of weights and a call of its own in every step, so with
  more of them both memory and the gain of batches would be lost. While there is no room nothing newer is taken, and
  new sequences begin with the newest that is here.
- A version that is not the newest is let go of with its last sequence.
- `take` and what reads are called from any thread; the rest by the engine's.

`Follower` looks at the node again and again, and has the newest weights taken. Its rules:
- Only the newest counts: what was committed while we were loading, or had no room, is skipped.
- Loading takes at most half of one thread's time: after it we wait for as long as it took.
- A node that is gone, or has left the run, leaves what is served as it was; that is said once in the log, and in
  /v1/models for as long as it lasts. We go on looking, and catch up.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from shoal.node.base.home import Home
from shoal.node.handout import NewestState, NotReady, fetch_newest
from shoal.node.inference.chat import PlainChat
from shoal.node.inference.models import check_spec, renewed, run_vocabulary, scorer_of
from shoal.node.inference.scorer import LogProbs, Piece, Scorer, SomeFailed, in_words
from shoal.node.inference.served import Choices, Served
from shoal.node.manifest.manifest import decode_manifest
from shoal.protocol.base.errors import ShoalError
from shoal.protocol.base.ids import Digest, RunId, short

MOST = 3  # versions: that of new texts, that of those which began before the last commit, and one that ends slowly
LOOK = 0.25  # seconds between two looks


log = logging.getLogger("shoal.serve")


@dataclass(frozen=True, slots=True, eq=False)
class Version:
    """The model as a round has left it."""

    scorer: Scorer
    round: int
    root: Digest


class LiveScorer:
    """See Scorer, Telling and Changing."""

    def __init__(self, first: Version) -> None:
        self.vocab, self.limit, self.slots = first.scorer.vocab, first.scorer.limit, first.scorer.slots
        self.standing: Mapping[str, Any] = {}  # what is told of the source; replaced as a whole
        self._newest = first
        self._held: dict[int, Version] = {}  # by slots
        self._lock = threading.Lock()  # guards both

    @property
    def version(self) -> str:
        """See Scorer."""
        return self._newest.scorer.version

    @property
    def newest(self) -> Version:
        """That of sequences which begin now."""
        return self._newest

    @property
    def versions(self) -> int:
        """How many are here."""
        with self._lock:
            return len({id(each) for each in (self._newest, *self._held.values())})

    @property
    def has_room(self) -> bool:
        """Whether another version may be taken, which frees the newest if nobody writes with that."""
        with self._lock:
            held = {id(each) for each in self._held.values()}
            return len(held) < MOST

    def take(self, version: Version) -> None:
        """From now on sequences begin with this one."""
        with self._lock:
            self._newest = version

    def version_of(self, slot: int) -> str:
        """See Changing."""
        return self._held[slot].scorer.version

    def extend(self, pieces: Sequence[Piece]) -> LogProbs:
        """See Scorer."""
        with self._lock:
            for piece in pieces:
                self._held.setdefault(piece.slot, self._newest)
        numbers: dict[Version, list[int]] = {}
        for number, piece in enumerate(pieces):
            numbers.setdefault(self._held[piece.slot], []).append(number)
        if len(numbers) == 1:
            return next(iter(numbers)).scorer.extend(pieces)
        rows = np.zeros((len(pieces), self.vocab), np.float32)
        failed: dict[int, ShoalError] = {}
        for version, its in numbers.items():
            part = [pieces[number] for number in its]
            try:
                rows[its] = version.scorer.extend(part)
            except Exception as error:  # of these weights, out of memory: those of other versions go on
                failed |= dict.fromkeys((piece.slot for piece in part), in_words(error))
        if failed:
            raise SomeFailed(rows, failed)
        return rows

    def end(self, slot: int) -> None:
        """See Scorer."""
        with self._lock:
            version = self._held.pop(slot, None)
        if version is not None:
            version.scorer.end(slot)

    def about(self) -> dict[str, Any]:
        """See Telling."""
        newest = self._newest
        return {"round": newest.round, "root": newest.root.hex(), "versions": self.versions, **self.standing}

    def told(self, slot: int) -> dict[str, Any]:
        """See Telling: the weights that wrote it."""
        version = self._held[slot]
        return {"round": version.round, "root": version.root.hex()}


Ask = Callable[[Digest, bool], NewestState]
"""The newest state, with its parameters if its root is another, and they are wanted."""
Load = Callable[[NewestState], Version]


class Follower:
    """Of the run named `name`, for `scorer`."""

    def __init__(self, name: str, scorer: LiveScorer, ask: Ask, load: Load) -> None:
        self._name, self._scorer, self._ask, self._load = name, scorer, ask, load
        self._trouble = ""
        self._stand(scorer.newest.round)

    def follow(self, over: threading.Event) -> None:
        """Until that is set; in a thread of its own."""
        pause = LOOK
        while not over.wait(pause):
            began = time.monotonic()
            self.look()
            pause = max(LOOK, time.monotonic() - began)

    def look(self) -> None:
        """Once."""
        scorer = self._scorer
        try:
            found = self._ask(scorer.newest.root, scorer.has_room)
            if found.parameters is not None:
                scorer.take(self._load(found))
                log.info("%s: round %d, state %s", self._name, found.round, short(found.root))
        except ShoalError as error:
            self._note(str(error))
        except Exception as error:  # of a library, out of memory: what is served is whole
            self._note(f"the newest state cannot be loaded: {type(error).__name__}: {error}")
            log.debug("loading failed", exc_info=error)
        else:
            self._note("")
            self._stand(found.round)

    def _note(self, trouble: str) -> None:
        if trouble and not self._trouble:
            log.warning("%s stays at round %d: %s", self._name, self._scorer.newest.round, trouble)
        elif self._trouble and not trouble:
            log.warning("%s follows its run again, at round %d", self._name, self._scorer.newest.round)
        if trouble != self._trouble:
            self._trouble = trouble
            self._stand(self._scorer.standing["node_round"])

    def _stand(self, round: int) -> None:
        """What /v1/models says; `round` is the newest that the node was known to have."""
        standing: dict[str, Any] = {"follows": not self._trouble, "node_round": round}
        self._scorer.standing = standing | ({"trouble": self._trouble} if self._trouble else {})


def open_run(home: Home, run: RunId, choices: Choices) -> Served:
    """The run as the node of this home has it, once it has a state; LocalError if no text can come of it."""
    first = _first(home, run)
    manifest = decode_manifest(first.manifest, run)
    spec = check_spec(manifest.model)
    begun = Version(scorer_of(spec, _parameters(first), choices, _short(first)), first.round, first.root)
    scorer = LiveScorer(begun)

    def load(found: NewestState) -> Version:
        made = renewed(scorer.newest.scorer, spec, _parameters(found), choices, _short(found))
        return Version(made, found.round, found.root)

    follower = Follower(manifest.name, scorer, partial(fetch_newest, home, run), load)
    whose = "this node's replica of run" if manifest.method.has_replicas else "run"
    return Served(
        name=manifest.name,
        scorer=scorer,
        vocabulary=run_vocabulary(manifest, home.runs, choices.tokenizer),
        chat=PlainChat(),
        created=int(time.time()),
        sentence=f"{whose} {manifest.name} ({run.hex()[:8]}), live from round {first.round}",
        follow=follower.follow,
    )


def _first(home: Home, run: RunId) -> NewestState:
    """The state that the node has; waits for it, and says what for."""
    said = ""
    while True:
        try:
            return fetch_newest(home, run)
        except NotReady as error:
            if str(error) != said:
                said = str(error)
                print(f"waiting: {said}", file=sys.stderr, flush=True)
            time.sleep(LOOK)


def _parameters(found: NewestState) -> torch.Tensor:
    assert found.parameters is not None
    return torch.from_numpy(found.parameters)


def _short(found: NewestState) -> str:
    """As of a checkpoint of the same round."""
    return found.root.hex()[:16]
