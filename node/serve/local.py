"""Scorers on this machine's device: Shoal's own decoder with a cache, and any other model without.

A prompt's chunk is a call of its own; all sequences that get one token are one call, whatever their lengths.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from shoal.node.serve.decoder import Cache, forward, forward_every
from shoal.node.serve.expert import Weighed
from shoal.node.serve.scorer import LogProbs, Piece
from shoal.node.trainer.model import Llama

ROOM = 64  # tokens that the cache has room for at first; then twice as many, each time


class LlamaScorer:
    """See Scorer, and Expert."""

    def __init__(
        self, model: Llama, *, vocab: int, limit: int, slots: int, version: str, cache: Cache | None = None
    ) -> None:
        """`cache` is one with as many slots, of a scorer that holds nothing in the slots that this one is asked for."""
        self.vocab, self.limit, self.slots, self.version = vocab, limit, slots, version
        self._model = model.eval().requires_grad_(False)
        self._device = model.model.embed_tokens.weight.device
        self._cache = Cache.empty(model, slots) if cache is None else cache
        self._held = [0] * slots  # tokens

    def renewed(self, model: Llama, version: str) -> LlamaScorer:
        """A scorer with other weights of the same shapes. Each slot is either's, from its first token to its end."""
        sizes = {"vocab": self.vocab, "limit": self.limit, "slots": self.slots}
        return LlamaScorer(model, **sizes, version=version, cache=self._cache)

    def extend(self, pieces: Sequence[Piece]) -> LogProbs:
        """See Scorer."""
        self._make_room(max(self._held[piece.slot] + len(piece.tokens) for piece in pieces))
        return in_groups(pieces, lambda group: self._call(group, forward))

    def weigh(self, pieces: Sequence[Piece]) -> Weighed:
        """See Expert."""
        self._make_room(max(self._held[piece.slot] + len(piece.tokens) for piece in pieces))
        return weighed(pieces, lambda group: self._call(group, forward_every))

    def end(self, slot: int) -> None:
        """See Scorer."""
        self._held[slot] = 0

    def _call(self, pieces: Sequence[Piece], way: Callable[..., Tensor]) -> Tensor:
        """What `way`, one of the decoder's, gives for pieces of one length."""
        slots = [piece.slot for piece in pieces]
        tokens = torch.tensor([piece.tokens for piece in pieces], device=self._device)
        logits = way(self._model, self._cache, tokens, slots, [self._held[slot] for slot in slots])
        for slot in slots:
            self._held[slot] += tokens.shape[1]
        return logits

    def _make_room(self, needed: int) -> None:
        room = self._cache.room or min(ROOM, self.limit)
        while room < needed:
            room = min(2 * room, self.limit)
        if room > self._cache.room:
            with torch.inference_mode():
                self._cache.grow(room)


class PlainScorer:
    """See Scorer, and Expert: any model; it computes a sequence anew for each piece. Right for all, and slow."""

    def __init__(
        self,
        model: Callable[[Tensor], Tensor],
        device: torch.device,
        *,
        vocab: int,
        limit: int,
        slots: int,
        version: str,
    ) -> None:
        """`model` gives logits (B, T, V) for tokens (B, T)."""
        self.vocab, self.limit, self.slots, self.version = vocab, limit, slots, version
        self._model, self._device = model, device
        self._held: dict[int, list[int]] = {}

    def extend(self, pieces: Sequence[Piece]) -> LogProbs:
        """See Scorer."""
        return in_groups(pieces, lambda group: self._call(group)[:, -1])

    def weigh(self, pieces: Sequence[Piece]) -> Weighed:
        """See Expert."""
        return weighed(pieces, self._call)

    def end(self, slot: int) -> None:
        """See Scorer."""
        self._held.pop(slot, None)

    def _call(self, pieces: Sequence[Piece]) -> Tensor:
        """Logits (B, T, V) of pieces of one length."""
        rows = []
        for piece in pieces:
            held = self._held.setdefault(piece.slot, [])
            held += piece.tokens
            rows.append(self._model(torch.tensor([held], device=self._device))[0, -len(piece.tokens) :])
        return torch.stack(rows)


def in_groups(pieces: Sequence[Piece], call: Callable[[Sequence[Piece]], Tensor]) -> LogProbs:
    """Log-probabilities (pieces, V) from the logits that `call` gives for pieces of one length, by rising slots."""
    order: list[int] = []
    parts: list[Tensor] = []
    with torch.inference_mode():
        for group in _groups(pieces):
            order += group
            parts.append(call([pieces[number] for number in group]))
        scores = torch.log_softmax(torch.cat(parts).float(), dim=-1).cpu()
        rows = torch.empty_like(scores)
        rows[torch.tensor(order)] = scores
    found: LogProbs = rows.numpy()
    return found


def weighed(pieces: Sequence[Piece], call: Callable[[Sequence[Piece]], Tensor]) -> Weighed:
    """The same, and what the pieces' tokens were worth, from logits (B, T, V). For single tokens it costs no more."""
    numbers = {piece.slot: number for number, piece in enumerate(pieces)}
    within = np.zeros(len(pieces))

    def last(group: Sequence[Piece]) -> Tensor:
        logits = call(group)
        if len(group[0].tokens) > 1:  # then it is the only one
            foreseen = torch.log_softmax(logits[0, :-1].float(), dim=-1)
            tokens = torch.tensor(group[0].tokens[1:], device=logits.device)
            within[numbers[group[0].slot]] = foreseen.gather(-1, tokens[:, None]).double().sum()
        return logits[:, -1]

    return Weighed(in_groups(pieces, last), within)


def _groups(pieces: Sequence[Piece]) -> Iterator[list[int]]:
    """Numbers of pieces that are called together: those of one token, and each longer one by itself."""
    numbers = sorted(range(len(pieces)), key=lambda number: pieces[number].slot)
    if single := [number for number in numbers if len(pieces[number].tokens) == 1]:
        yield single
    yield from ([number] for number in numbers if len(pieces[number].tokens) > 1)
