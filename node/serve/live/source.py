"""A run that the node of this machine is in, as something to serve: its newest committed state, and those to come."""

from __future__ import annotations

import sys
import time
from functools import partial

import torch

from shoal.node.handout.reader import Newest, NotYet, ask
from shoal.node.home import Home
from shoal.node.serve.chat import PlainChat
from shoal.node.serve.live.follower import LOOK, Follower
from shoal.node.serve.live.scorer import LiveScorer, Version
from shoal.node.serve.models import check_spec, renewed, scorer_of
from shoal.node.serve.run_tokens import run_codec
from shoal.node.serve.served import Choices, Served
from shoal.node.spec.manifest import decode_manifest
from shoal.node.spec.method import REPLICAS
from shoal.protocol.ids import RunId


def open_run(home: Home, run: RunId, choices: Choices) -> Served:
    """The run as the node of this home has it, once it has a state; LocalError if no text can come of it."""
    first = _first(home, run)
    manifest = decode_manifest(first.manifest, run)
    spec = check_spec(manifest.model)
    begun = Version(scorer_of(spec, _parameters(first), choices, _short(first)), first.round, first.root)
    scorer = LiveScorer(begun)

    def load(found: Newest) -> Version:
        made = renewed(scorer.newest.scorer, spec, _parameters(found), choices, _short(found))
        return Version(made, found.round, found.root)

    follower = Follower(manifest.name, scorer, partial(ask, home, run), load)
    whose = "this node's replica of run" if manifest.method.name in REPLICAS else "run"
    return Served(
        name=manifest.name,
        scorer=scorer,
        codec=run_codec(manifest, home.runs, choices.tokenizer),
        chat=PlainChat(),
        created=int(time.time()),
        sentence=f"{whose} {manifest.name} ({run.hex()[:8]}), live from round {first.round}",
        follow=follower.follow,
    )


def _first(home: Home, run: RunId) -> Newest:
    """The state that the node has; waits for it, and says what for."""
    said = ""
    while True:
        try:
            return ask(home, run)
        except NotYet as error:
            if str(error) != said:
                said = str(error)
                print(f"waiting: {said}", file=sys.stderr, flush=True)
            time.sleep(LOOK)


def _parameters(found: Newest) -> torch.Tensor:
    assert found.parameters is not None
    return torch.from_numpy(found.parameters)


def _short(found: Newest) -> str:
    """As of a checkpoint of the same round."""
    return found.root.hex()[:16]
