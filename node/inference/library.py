"""Models of the transformers library as scorers, with the library's own cache where it gives right results.

Sequences of unequal length are computed as one batch by padding their caches on the left, and masking the padding. The
library's causal models are made for that, but not all support it: some count positions differently, or have caches that
cannot be padded (sliding windows, state-space models). So each model is tested when it is opened, and served in the
first of these ways that gives the same scores as whole sequences. Some models fail only in long texts, so one of the
texts tried is as long as the model's context, or as a few seconds of computing allow.

    batched     one call for all sequences that get one token
    one by one  a call for each sequence, with its own cache
    anew        without a cache
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.node.base import extra
from shoal.node.inference.local import PlainScorer, predict
from shoal.node.inference.scorer import Piece, Predictions, Scorer
from shoal.node.training.models.hf import quietly

TOLERANCE = 1e-3  # of log-probabilities: right ones differ by the rounding of sums only
Calls = tuple[tuple[tuple[int, tuple[int, ...]], ...], ...]  # for each call, the slot and tokens of each piece
PROBE: Calls = (  # prompts of unequal length, some in parts; slots that end and begin again
    *(((0, (5, 1, 4, 1, 3, 2, 6)), (1, (2, 6))), ((0, (1, 2, 3)), (1, (4,))), ((2, (3,)),)),
    *(((0, (7,)), (1, (1,)), (2, (4,))), ((0, (2,)), (2, (2,))), ((0, (5,)), (1, (3,)), (2, (1,)))),
)
LONG = 16  # tokens: PROBE covers shorter texts
MOST_TRIED = 1e11  # operations for the long text
TRIES = 2  # long texts: in a mixture of experts a rounding may route a token differently, but not in every text
BY_LENGTH = ("dynamic", "longrope")  # kinds of rotary positions that depend on the longest sequence of a batch

log = logging.getLogger("shoal.serve")


def library_scorer(network: Any, *, limit: int, slots: int, version: str) -> Scorer:
    """A scorer over a causal model of the library, which is on its device already."""
    network.requires_grad_(False).eval()
    text = network.config.get_text_config()
    vocab: int = text.vocab_size
    plain = _plain(network, vocab, limit, slots, version)
    rope = str(getattr(text, "rope_parameters", None) or getattr(text, "rope_scaling", None))
    alone = any(kind in rope for kind in BY_LENGTH)
    for is_batched in (False,) if alone else (True, False):
        scorer = LibraryScorer(network, is_batched, vocab=vocab, limit=limit, slots=slots, version=version)
        if is_right(scorer, plain) and is_right_in_long_texts(scorer, plain, network):
            return scorer
        way = "in batches" if is_batched else "with a cache"
        log.warning(
            "models of type %s cannot be served %s: each token will take longer",
            network.config.model_type,
            way,
            extra={"code": "served-slowly"},
        )
    return plain


def renewed_library_scorer(scorer: Scorer, network: Any, version: str) -> Scorer:
    """A scorer like `scorer` with other weights; it is served in the same way, without another test."""
    network.requires_grad_(False).eval()
    vocab, limit, slots = scorer.vocab, scorer.limit, scorer.slots
    if isinstance(scorer, LibraryScorer):
        return LibraryScorer(network, scorer.is_batched, vocab=vocab, limit=limit, slots=slots, version=version)
    return _plain(network, vocab, limit, slots, version)


def _plain(network: Any, vocab: int, limit: int, slots: int, version: str) -> PlainScorer:
    def logits(tokens: Tensor) -> Tensor:
        out: Tensor = network(input_ids=tokens, use_cache=False).logits
        return out

    return PlainScorer(logits, network.device, vocab=vocab, limit=limit, slots=slots, version=version)


def is_right_in_long_texts(scorer: Scorer, plain: Scorer, network: Any) -> bool:
    """Whether `scorer` scores a long text, beside a short one, as `plain` does. Both are empty afterwards."""
    affordable = MOST_TRIED / (8 * sum(weight.numel() for weight in network.parameters()))  # read four times
    count = min(scorer.limit, int(affordable))
    if count <= LONG:
        return True
    texts = [tuple(1 + (number + place * place) % 7 for place in range(count)) for number in range(TRIES)]
    return any(is_right(scorer, plain, _read_slowly(text)) for text in texts)


def _read_slowly(text: tuple[int, ...]) -> Calls:
    """Calls in which the last two tokens of a text come one by one, and another text is beside it."""
    return ((0, text[:-2]), (1, (2, 6))), ((0, text[-2:-1]), (1, (1,))), ((0, text[-1:]),)


def is_right(scorer: Scorer, plain: Scorer, calls: Calls = PROBE) -> bool:
    """Whether `scorer` scores as `plain` does. Both are empty afterwards."""
    wanted = 1 + max(slot for call in calls for slot, _ in call)
    try:
        for call in calls:
            pieces = [Piece(slot, tokens) for slot, tokens in call if slot < scorer.slots]
            if not pieces:
                continue
            if abs(scorer.extend(pieces).rows - plain.extend(pieces).rows).max() > TOLERANCE:
                return False
    except Exception as error:  # a model may raise anything when it is called in a way that it does not support
        log.debug("a model was asked in a way that it does not know", exc_info=error)
        return False
    finally:
        for each in (scorer, plain):
            for slot in range(min(wanted, scorer.slots)):
                each.end(slot)
    return True


@dataclass(slots=True, eq=False)
class Group:
    """Sequences that share one cache, in which all are padded on the left to the length of the longest."""

    slots: tuple[int, ...]
    lengths: list[int]
    cache: Any = None  # the library's object; None: nothing is cached yet

    @property
    def width(self) -> int:
        """Positions in the cache, padding included."""
        return max(self.lengths)

    def row(self, slot: int) -> list[tuple[Tensor, Tensor]]:
        """Keys and values of one sequence for each layer, (1, K, T, H), without padding."""
        number = self.slots.index(slot)
        start = self.width - self.lengths[number]
        layers = [(each.keys, each.values) for each in self.cache.layers]
        return [(k[number : number + 1, :, start:], v[number : number + 1, :, start:]) for k, v in layers]

    def length(self, slot: int) -> int:
        """The number of tokens of one sequence."""
        return self.lengths[self.slots.index(slot)]


class LibraryScorer(Scorer):
    """A model of the library with its cache; see Scorer."""

    def __init__(self, network: Any, is_batched: bool, *, vocab: int, limit: int, slots: int, version: str) -> None:
        self.vocab, self.limit, self.slots, self.version = vocab, limit, slots, version
        self._network, self.is_batched = network, is_batched
        self._groups: dict[int, Group] = {}  # by slot

    def extend(self, pieces: Sequence[Piece], within: bool = False) -> Predictions:
        """See Scorer."""
        return predict(pieces, self._logits, within)

    def end(self, slot: int) -> None:
        """See Scorer."""
        self._groups.pop(slot, None)

    def _logits(self, pieces: Sequence[Piece]) -> Tensor:
        """Logits (B, T, V) of pieces of one length."""
        if not self.is_batched:
            return torch.cat([self._extend([piece], self._group_of(piece.slot)) for piece in pieces])
        return self._extend(pieces, self._group_with(tuple(piece.slot for piece in pieces)))

    def _extend(self, pieces: Sequence[Piece], group: Group) -> Tensor:
        """Logits (B, T, V) of the pieces of a whole group, which are added to its cache."""
        device, count = self._network.device, len(pieces[0].tokens)
        lengths = torch.tensor(group.lengths, device=device)[:, None]
        settings: dict[str, Any] = {}
        if self.is_batched:
            if group.cache is None:  # one that keeps whole sequences; the model's default may not
                group.cache = extra.transformers().DynamicCache()
            places = torch.arange(group.width + count, device=device)
            settings["attention_mask"] = (places >= group.width - lengths).long()
            settings["position_ids"] = lengths + places[:count]
        tokens = torch.tensor([piece.tokens for piece in pieces], device=device)
        with quietly():
            out = self._network(input_ids=tokens, past_key_values=group.cache, use_cache=True, **settings)
        group.cache, group.lengths = out.past_key_values, [each + count for each in group.lengths]
        for slot in group.slots:
            self._groups[slot] = group
        logits: Tensor = out.logits
        return logits

    def _group_of(self, slot: int) -> Group:
        return self._groups.get(slot) or Group((slot,), [0])

    def _group_with(self, slots: tuple[int, ...]) -> Group:
        """The group of exactly these slots; it is made from their present groups if there is none."""
        olds = [self._group_of(slot) for slot in slots]
        if olds[0].slots == slots and all(old is olds[0] for old in olds):  # some may have ended since, and begun again
            return olds[0]
        lengths = [old.length(slot) for old, slot in zip(olds, slots, strict=True)]
        held = [old.row(slot) if length else [] for old, slot, length in zip(olds, slots, lengths, strict=True)]
        made = Group(slots, lengths)
        if made.width:
            made.cache = _padded(held, made.width)
        return made


def _padded(rows: Sequence[list[tuple[Tensor, Tensor]]], width: int) -> Any:
    """The library's cache object for the keys and values of several sequences, padded on the left to `width`."""
    cache = extra.transformers().DynamicCache()
    layers = next(len(row) for row in rows if row)
    for layer in range(layers):
        like = next(row[layer] for row in rows if row)
        parts = [row[layer] if row else tuple(each[:, :, :0] for each in like) for row in rows]
        keys, values = (
            torch.cat([F.pad(part[which], (0, 0, width - part[which].shape[2], 0)) for part in parts])
            for which in (0, 1)
        )
        cache.update(keys, values, layer)
    return cache
