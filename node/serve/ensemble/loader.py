"""From a folder of experts to a panel, at the start and whenever it is looked at again.

Whose file and model are what they were stays loaded, and goes on with its sequences. Vocabulary and context are those
of the first look: what does not fit them is refused, as requests have been planned by them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from blake3 import blake3
from torch import Tensor

from shoal.node.experts.files import read_parameters
from shoal.node.serve.ensemble.merged import merge, one_model, read_base
from shoal.node.serve.ensemble.mix import PCB, parse_mix
from shoal.node.serve.ensemble.panel import SHOWN, Member, Panel
from shoal.node.serve.ensemble.prior import Window, foreseen, last_windows, prior_of
from shoal.node.serve.ensemble.table import Entry, Table, checked, read_table, vocab_of
from shoal.node.serve.ensemble.tokens import table_codec
from shoal.node.serve.ensemble.weights import expert_of
from shoal.node.serve.served import Choices
from shoal.node.serve.text import Codec
from shoal.node.spec.model import AnyModel
from shoal.node.textfile import read_text
from shoal.protocol.errors import LocalError


class Loader:
    """Of one folder, as its owner has chosen to mix it."""

    def __init__(self, folder: Path, choices: Choices) -> None:
        """LocalError unless the folder's table, the tokens and the text of the prior are there."""
        self.mix = parse_mix(choices.mix)
        if choices.base and self.mix.name != PCB:
            raise LocalError(f"--base is for --mix {PCB}")
        table = read_table(folder)
        self.vocab, self.limit = vocab_of(table), _context(table)
        self.name = table.name
        self.codec = table_codec(folder, table, self.vocab, choices.tokenizer)
        self._folder, self._choices = folder, choices
        self._windows = windows_of(choices.prior, self.codec, self.limit) if choices.prior else ()

    def load(self, known: Sequence[Member] = ()) -> Panel:
        """The panel that the folder gives now; `known` are members that need not be loaded again."""
        table = read_table(self._folder)
        if vocab_of(table) != self.vocab:
            raise LocalError(f"the experts in {self._folder} have other tokens than before: start the server anew")
        if (shortest := _context(table)) < self.limit:
            raise LocalError(
                f"an expert in {self._folder} has a context of {shortest:,} tokens, less than the server's "
                f"{self.limit:,}: start the server anew to use it"
            )
        if self.mix.is_merge:
            return self._merged(table, known)
        loaded = {each.key: each for each in known}
        members = [loaded.get(entry.key) or self._member(entry) for entry in table.experts]
        return Panel(tuple(members), self._prior(table, [each.foreseen for each in members]), self.mix.k)

    def _member(self, entry: Entry) -> Member:
        theta = read_parameters(checked(self._folder, entry), entry.model)
        expert = expert_of(entry.model, theta, self._choices, blake3(entry.key.encode()).hexdigest()[:SHOWN])
        return Member(entry.name, entry.key, expert, foreseen(expert, self._windows))

    def merged(self, table: Table) -> tuple[AnyModel, Tensor]:
        """The one model that is made of all, and its parameters (d,); LocalError if they cannot be merged."""
        model = one_model(table.experts)
        base = read_base(self._choices.base, model) if self.mix.name == PCB else None
        thetas = [read_parameters(checked(self._folder, each), each.model) for each in table.experts]
        prior = self._prior(table, [self._foreseen(model, theta) for theta in thetas])
        return model, merge(thetas, prior, self.mix, base)

    def _merged(self, table: Table, known: Sequence[Member]) -> Panel:
        """A panel of one, the merge of all."""
        key = " + ".join(f"{each.key} {each.prior}" for each in table.experts)
        certain = torch.zeros(1, dtype=torch.float64)
        if known and known[0].key == key:
            return Panel((known[0],), certain, None)
        expert = expert_of(*self.merged(table), self._choices, self.mix.name)
        names = tuple(each.name for each in table.experts)
        return Panel((Member(self.mix.name, key, expert, made_of=names),), certain, None)

    def _foreseen(self, model: AnyModel, theta: Tensor) -> tuple[float, ...]:
        return foreseen(expert_of(model, theta, self._choices, ""), self._windows) if self._windows else ()

    def _prior(self, table: Table, seen: Sequence[Sequence[float]]) -> Tensor:
        """log p(j), (E,): by the text that was named for it, else the table's."""
        if self._windows:
            return prior_of(seen)
        given = torch.tensor([each.prior for each in table.experts], dtype=torch.float64)
        return (given / given.sum()).log()


def _context(table: Table) -> int:
    """Tokens that every expert's context holds."""
    return min(each.model.context for each in table.experts)


def windows_of(path: str, codec: Codec, limit: int) -> tuple[Window, ...]:
    """Of the text on which a prior is estimated; LocalError if it cannot be read, or is too short."""
    text = read_text(Path(path), "the text for the prior,")
    windows = last_windows(codec.encode(text, special=False), limit)
    if not windows:
        raise LocalError(f"the text for the prior, {path}, has no two tokens: name a longer one with --prior")
    return windows
