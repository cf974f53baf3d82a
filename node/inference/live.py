"""Serves a run that is still training: each new text is written with the newest committed weights.

`LiveScorer` is one scorer over several versions of a model. Its rules:
- A sequence belongs to the version that is the newest when its first tokens are read, until it ends: so its cached keys
  and values always fit the weights. Each step calls every version that has sequences once.
- At most `MOST` versions are held at once. Each costs memory for all weights, and a separate call in every step, which
  loses the gain of batching. While there is no room no newer version is taken, and new sequences begin with the newest
  one that is held.
- A version that is not the newest is released with its last sequence.
- `take` and all that only reads are called from any thread; the rest by the engine's.

`Follower` polls the node, and has the newest weights taken. Its rules:
- Only the newest state counts: states that were committed during a load, or while there was no room, are skipped.
- Loading takes at most half of one thread's time: it is followed by a pause of the same length.
- If the node is gone, or has left the run, the weights stay as they are; the log says so once, and /v1/models for as
  long as it lasts. Polling goes on, and catches up when the node is back.
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
from shoal.node.inference.scorer import Piece, Predictions, Scorer, as_shoal_error
from shoal.node.inference.served import Served, ServeOptions
from shoal.node.manifest.manifest import decode_manifest
from shoal.protocol.base.errors import ShoalError
from shoal.protocol.base.ids import Digest, RunId, short

MOST = 3  # versions: for new texts, for those begun before the last commit, and one for texts that take long
POLL = 0.25  # seconds between two polls of the node

log = logging.getLogger("shoal.serve")


@dataclass(frozen=True, slots=True, eq=False)
class Version:
    """The model after one round."""

    scorer: Scorer
    round: int
    root: Digest


class LiveScorer(Scorer):
    """Several versions of one model; see Scorer."""

    def __init__(self, first: Version) -> None:
        self.vocab, self.limit, self.slots = first.scorer.vocab, first.scorer.limit, first.scorer.slots
        self.standing: Mapping[str, Any] = {}  # what `about` adds about the source; replaced as a whole
        self.newest, self.version = first, first.scorer.version  # of sequences that begin now
        self._held: dict[int, Version] = {}  # by slot
        self._lock = threading.Lock()  # guards `newest` and `_held`

    @property
    def versions(self) -> int:
        """How many versions are held."""
        with self._lock:
            return len({id(each) for each in (self.newest, *self._held.values())})

    @property
    def has_room(self) -> bool:
        """Whether another version may be taken; the present newest one is released then unless a sequence uses it."""
        with self._lock:
            held = {id(each) for each in self._held.values()}
            return len(held) < MOST

    def take(self, version: Version) -> None:
        """New sequences begin with this version from now on."""
        with self._lock:
            self.newest, self.version = version, version.scorer.version

    def version_of(self, slot: int) -> str:
        """See Scorer."""
        return self._held[slot].scorer.version

    def extend(self, pieces: Sequence[Piece], within: bool = False) -> Predictions:
        """See Scorer."""
        with self._lock:
            for piece in pieces:
                self._held.setdefault(piece.slot, self.newest)
        numbers: dict[Version, list[int]] = {}
        for number, piece in enumerate(pieces):
            numbers.setdefault(self._held[piece.slot], []).append(number)
        if len(numbers) == 1:
            return next(iter(numbers)).scorer.extend(pieces, within)
        failed: dict[int, ShoalError] = {}
        answer = Predictions(np.zeros((len(pieces), self.vocab), np.float32), np.zeros(len(pieces)), failed)
        for version, its in numbers.items():
            part = [pieces[number] for number in its]
            try:
                found = version.scorer.extend(part, within)
            except Exception as error:  # of this version only, such as no memory: sequences of the others go on
                failed |= dict.fromkeys((piece.slot for piece in part), as_shoal_error(error))
            else:
                answer.rows[its], answer.within[its] = found.rows, found.within
                failed |= found.failed
        return answer

    def end(self, slot: int) -> None:
        """See Scorer."""
        with self._lock:
            version = self._held.pop(slot, None)
        if version is not None:
            version.scorer.end(slot)

    def about(self) -> dict[str, Any]:
        """See Scorer."""
        newest = self.newest
        return {"round": newest.round, "root": newest.root.hex(), "versions": self.versions, **self.standing}

    def notes(self, slot: int) -> dict[str, Any]:
        """See Scorer: the round and root of the weights that wrote the text."""
        version = self._held[slot]
        return {"round": version.round, "root": version.root.hex()}


Ask = Callable[[Digest, bool], NewestState]
"""Gives the newest state; its parameters only if its root is not the known one, and they are wanted."""
Load = Callable[[NewestState], Version]


class Follower:
    """Keeps `scorer` at the newest state of the run `name`."""

    def __init__(self, name: str, scorer: LiveScorer, ask: Ask, load: Load) -> None:
        self._name, self._scorer, self._ask, self._load = name, scorer, ask, load
        self._trouble = ""
        self._set_standing(scorer.newest.round)

    def follow(self, over: threading.Event) -> None:
        """Poll the node until `over` is set; runs in its own thread."""
        pause = POLL
        while not over.wait(pause):
            began = time.monotonic()
            self.poll()
            pause = max(POLL, time.monotonic() - began)

    def poll(self) -> None:
        """Ask the node once, and take the newest weights if there are any."""
        scorer = self._scorer
        try:
            found = self._ask(scorer.newest.root, scorer.has_room)
            if found.parameters is not None:
                scorer.take(self._load(found))
                log.info("%s: round %d, state %s", self._name, found.round, short(found.root))
        except ShoalError as error:
            self._report(str(error))
        except Exception as error:  # such as no memory, or a library's error: the weights that are served are whole
            self._report(f"the newest state cannot be loaded: {type(error).__name__}: {error}")
            log.debug("loading failed", exc_info=error)
        else:
            self._report("")
            self._set_standing(found.round)

    def _report(self, trouble: str) -> None:
        """Log a change for the worse or the better, and update /v1/models; `trouble` is empty if all is well."""
        if trouble and not self._trouble:
            log.warning(
                "%s stays at round %d: %s",
                self._name,
                self._scorer.newest.round,
                trouble,
                extra={"code": "reload-failed"},
            )
        elif self._trouble and not trouble:
            log.warning(
                "%s follows its run again, at round %d",
                self._name,
                self._scorer.newest.round,
                extra={"code": "reload-works"},
            )
        if trouble != self._trouble:
            self._trouble = trouble
            self._set_standing(self._scorer.standing["node_round"])

    def _set_standing(self, round: int) -> None:
        """Update what /v1/models says of the source; `round` is the newest round that the node is known to have."""
        standing: dict[str, Any] = {"follows": not self._trouble, "node_round": round}
        self._scorer.standing = standing | ({"trouble": self._trouble} if self._trouble else {})


def open_run(home: Home, run: RunId, options: ServeOptions) -> Served:
    """The run as this home's node has it; waits until it has a state. LocalError if its model writes no text."""
    first = _first(home, run)
    manifest = decode_manifest(first.manifest)
    spec = check_spec(manifest.model)
    begun = Version(scorer_of(spec, _parameters(first), options, _short(first)), first.round, first.root)
    scorer = LiveScorer(begun)

    def load(found: NewestState) -> Version:
        made = renewed(scorer.newest.scorer, spec, _parameters(found), options, _short(found))
        return Version(made, found.round, found.root)

    follower = Follower(manifest.name, scorer, partial(fetch_newest, home, run), load)
    whose = "this node's replica of run" if manifest.method.has_replicas else "run"
    return Served(
        name=manifest.name,
        scorer=scorer,
        vocabulary=run_vocabulary(manifest, home.runs, options.tokenizer),
        chat=PlainChat(),
        created=int(time.time()),
        sentence=f"{whose} {manifest.name} ({run.hex()[:8]}), live from round {first.round}",
        follow=follower.follow,
    )


def _first(home: Home, run: RunId) -> NewestState:
    """The node's state; waits until there is one, and prints what it waits for."""
    said = ""
    while True:
        try:
            return fetch_newest(home, run)
        except NotReady as error:
            if str(error) != said:
                said = str(error)
                print(f"waiting: {said}", file=sys.stderr, flush=True)
            time.sleep(POLL)


def _parameters(found: NewestState) -> torch.Tensor:
    assert found.parameters is not None
    return torch.from_numpy(found.parameters)


def _short(found: NewestState) -> str:
    """The version of a state's scorer; it is the same as for a checkpoint of that round."""
    return found.root.hex()[:16]
