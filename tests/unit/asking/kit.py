"""Peers that answer for an expert, all in one event loop, and faults that they may have."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from shoal.node.inference.remote.answering.server import ExpertServer
from shoal.node.inference.remote.asking.expert import Background, RemoteExpert
from shoal.node.inference.remote.connection import NodeAway
from shoal.node.inference.scorer import Scorer
from shoal.protocol.base.errors import LOST, TransportError
from shoal.protocol.base.ids import PeerId, digest
from shoal.protocol.base.wire import NODE_TAGS, Message, decode, encode
from shoal.protocol.messages.experts import AskExpert

FILE = digest("test expert")
ANNA, BOB, CARL, ME = (PeerId(name) for name in ("anna", "bob", "carl", "me"))

Change = Callable[[Message], Message]


class Peers:
    """The network: `gone` peers cannot be reached, `stuck` ones never answer, `lying` ones change their answers.

    The connection with a `breaking` peer breaks after it has worked on a question, before its answer arrives.
    """

    def __init__(self, background: Background) -> None:
        self._background = background
        self.servers: dict[PeerId, ExpertServer] = {}
        self._tasks: list[asyncio.Task[None]] = []  # a loop holds its tasks weakly
        self.gone: set[PeerId] = set()
        self.stuck: set[PeerId] = set()
        self.lying: dict[PeerId, Change] = {}
        self.breaking: set[PeerId] = set()
        self.held_twice: set[PeerId] = set()  # there are two connections with each
        self.on_break: Callable[[], None] = lambda: None
        self.met: dict[PeerId, int] = {}  # how often each was connected
        self._connected: set[PeerId] = set()
        self.is_away = False  # our own node
        self.calls: list[tuple[PeerId, AskExpert]] = []
        self.most_at_once = self._at_once = 0

    def add(self, peer: PeerId, expert: Scorer, each: int = 32) -> None:
        async def make() -> None:
            self.servers[peer] = ExpertServer(expert, each)
            self._tasks.append(asyncio.create_task(self.servers[peer].run()))

        self._background.run(make())

    def is_met(self, peer: PeerId) -> bool:
        return peer in self._connected

    async def meet(self, peer: PeerId, limit: float) -> None:
        if self.is_away:
            raise NodeAway("our node is away")
        if peer in self._connected:
            return
        if peer in self.gone or peer not in self.servers:
            raise TransportError("no connection")
        self.met[peer] = self.met.get(peer, 0) + 1
        self._connected.add(peer)

    def break_off(self, peer: PeerId) -> None:
        """A connection with a peer is lost, and with it the peer, unless there is another one."""
        if peer not in self.held_twice:
            self._connected.discard(peer)
            self.servers[peer].lost(ME)
        self.on_break()
        raise TransportError("a connection is lost", LOST)

    async def call(self, peer: PeerId, message: Message, limit: float) -> Message:
        """Ask a peer, through the bytes of the wire."""
        asked = decode(encode(message), ME, tags=NODE_TAGS)
        assert isinstance(asked, AskExpert)
        if self.is_away:
            raise NodeAway("our node is away")
        self.calls.append((peer, asked))
        if peer in self.stuck:
            await asyncio.sleep(limit)
            raise TransportError("no answer")
        assert peer in self._connected, "it was not met"
        if peer in self.gone or peer not in self.servers:
            self.break_off(peer)
        self._at_once += 1
        self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            answer = decode(await self.servers[peer].ask(ME, asked), peer, tags=NODE_TAGS)
        finally:
            self._at_once -= 1
        if peer in self.breaking:
            self.break_off(peer)
        return self.lying.get(peer, lambda message: message)(answer)

    def asked(self, peer: PeerId) -> list[AskExpert]:
        """All questions to a peer."""
        return [asked for to, asked in self.calls if to == peer]

    def tokens_of(self, peer: PeerId) -> int:
        """How many tokens a peer was given to read."""
        return sum(len(each.tokens) for asked in self.asked(peer) for each in asked.additions)


def remote(peers: Peers, background: Background, like: Scorer, patience: float = 5.0) -> RemoteExpert:
    """An expert for which the peers answer, with the vocabulary, limit and slots of `like`."""
    shape = {"vocab": like.vocab, "limit": like.limit, "slots": like.slots}
    expert = RemoteExpert(FILE, peers, background, patience=patience, **shape)
    expert.answered_by(list(peers.servers))
    return expert
