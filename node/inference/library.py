"""Models of transformers as scorers, with the library's own cache as far as it is right for them.

Sequences of unequal length are one batch if their caches are padded on the left, and masked. The library's causal
models are made for that, but not all keep it: some count positions otherwise, or have caches that cannot be padded
(sliding windows, state-space models). What a model does is found out when it is opened, by asking it: it is served in
the first of these ways whose scores are those of the whole sequences. Some do otherwise in longer texts, so one that is
tried is as long as the model may see, or as a few seconds allow.

    batched     one call for all that get one token
    one by one  a call for each sequence, with a cache of its own
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
from shoal.node.inference.local import PlainScorer, in_groups, weighed
from shoal.node.inference.scorer import Expert, LogProbs, Piece, Scorer, Weighed
from shoal.node.training.models.hf import quietly

TOLERANCE = 1e-3  # of log-probabilities; what is right differs by the rounding of sums
Calls = tuple[tuple[tuple[int, tuple[int, ...]], ...], ...]  # of each, slot and tokens of each piece
PROBE: Calls = (  # Prompts of unequal length, some in parts; slots that leave and return
    *(((0, (5, 1, 4, 1, 3, 2, 6)), (1, (2, 6))), ((0, (1, 2, 3)), (1, (4,))), ((2, (3,)),)),
    *(((0, (7,)), (1, (1,)), (2, (4,))), ((0, (2,)), (2, (2,))), ((0, (5,)), (1, (3,)), (2, (1,)))),
)
LONG = 16  # tokens: shorter texts are tried by PROBE
MOST_TRIED = 1e11  # operations, for the long text
TRIES = 2  # of other tokens: where a model chooses among many, a rounding may choose otherwise, but not each time
BY_LENGTH = ("dynamic", "longrope")  # rotary positions that depend on the longest sequence of a batch

log = logging.getLogger("shoal.serve")


def library_scorer(network: Any, *, limit: int, slots: int, version: str) -> Expert:
    """A scorer of a causal model of the library, which is in evaluation and on its device."""
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
            "models of type %s cannot be served %s: each token will take longer", network.config.model_type, way
        )
    return plain


def renewed_library_scorer(scorer: Scorer, network: Any, version: str) -> Expert:
    """A scorer like `scorer`, of the same kind of model with other weights, which need not be tried anew."""
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
    """Whether it scores a long text as `plain` does, beside a short one. Both are empty afterwards."""
    affordable = MOST_TRIED / (8 * sum(weight.numel() for weight in network.parameters()))  # it is read four times
    count = min(scorer.limit, int(affordable))
    if count <= LONG:
        return True
    texts = [tuple(1 + (number + place * place) % 7 for place in range(count)) for number in range(TRIES)]
    return any(is_right(scorer, plain, _read_slowly(text)) for text in texts)


def _read_slowly(text: tuple[int, ...]) -> Calls:
    """The last two tokens of a text come by themselves, and another text is beside it."""
    return ((0, text[:-2]), (1, (2, 6))), ((0, text[-2:-1]), (1, (1,))), ((0, text[-1:]),)


def is_right(scorer: Scorer, plain: Scorer, calls: Calls = PROBE) -> bool:
    """Whether it scores as `plain` does. Both are empty afterwards."""
    wanted = 1 + max(slot for call in calls for slot, _ in call)
    try:
        for call in calls:
            pieces = [Piece(slot, tokens) for slot, tokens in call if slot < scorer.slots]
            if not pieces:
                continue
            if abs(scorer.extend(pieces) - plain.extend(pieces)).max() > TOLERANCE:
                return False
    except Exception as error:  # whatever a model makes of what it is not made for
        log.debug("a model was asked in a way that it does not know", exc_info=error)
        return False
    finally:
        for each in (scorer, plain):
            for slot in range(min(wanted, scorer.slots)):
                each.end(slot)
    return True


@dataclass(slots=True, eq=False)
class Group:
    """Sequences whose keys and values lie in one cache, padded on the left to the longest."""

    slots: tuple[int, ...]
    lengths: list[int]
    cache: Any = None  # the library's; None: empty

    @property
    def width(self) -> int:
        """Places in the cache, with those of the padding."""
        return max(self.lengths)

    def row(self, slot: int) -> list[tuple[Tensor, Tensor]]:
        """One sequence's keys and values by layers, (1, K, T, H), without padding."""
        number = self.slots.index(slot)
        start = self.width - self.lengths[number]
        layers = [(each.keys, each.values) for each in self.cache.layers]
        return [(k[number : number + 1, :, start:], v[number : number + 1, :, start:]) for k, v in layers]

    def length(self, slot: int) -> int:
        """Tokens of one sequence."""
        return self.lengths[self.slots.index(slot)]


class LibraryScorer:
    """See Scorer, and Expert."""

    def __init__(self, network: Any, is_batched: bool, *, vocab: int, limit: int, slots: int, version: str) -> None:
        self.vocab, self.limit, self.slots, self.version = vocab, limit, slots, version
        self._network, self.is_batched = network, is_batched
        self._groups: dict[int, Group] = {}  # by slot

    def extend(self, pieces: Sequence[Piece]) -> LogProbs:
        """See Scorer."""
        return in_groups(pieces, lambda group: self._call(group)[:, -1])

    def weigh(self, pieces: Sequence[Piece]) -> Weighed:
        """See Expert."""
        return weighed(pieces, self._call)

    def end(self, slot: int) -> None:
        """See Scorer."""
        self._groups.pop(slot, None)

    def _call(self, pieces: Sequence[Piece]) -> Tensor:
        """Logits (B, T, V) of pieces of one length."""
        if not self.is_batched:
            return torch.cat([self._score([piece], self._alone(piece.slot)) for piece in pieces])
        return self._score(pieces, self._together(tuple(piece.slot for piece in pieces)))

    def _score(self, pieces: Sequence[Piece], group: Group) -> Tensor:
        device, count = self._network.device, len(pieces[0].tokens)
        lengths = torch.tensor(group.lengths, device=device)[:, None]
        settings: dict[str, Any] = {}
        if self.is_batched:
            if group.cache is None:  # of whole sequences, whatever the model's own would keep
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

    def _alone(self, slot: int) -> Group:
        return self._groups.get(slot) or Group((slot,), [0])

    def _together(self, slots: tuple[int, ...]) -> Group:
        """The group of just these; made of those that they are in, if there is none."""
        olds = [self._alone(slot) for slot in slots]
        if olds[0].slots == slots and all(old is olds[0] for old in olds):  # some may have left it, and begun anew
            return olds[0]
        lengths = [old.length(slot) for old, slot in zip(olds, slots, strict=True)]
        held = [old.row(slot) if length else [] for old, slot, length in zip(olds, slots, lengths, strict=True)]
        made = Group(slots, lengths)
        if made.width:
            made.cache = _padded(held, made.width)
        return made


def _padded(rows: Sequence[list[tuple[Tensor, Tensor]]], width: int) -> Any:
    """The library's cache of several sequences' keys and values by layers."""
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
