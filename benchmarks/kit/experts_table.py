"""Losses per domain of all models that `make experts` has trained, in nats per token, on held-out texts.

The held-out texts of a domain are cut into blocks. One in four is for the prior and never scored; of the rest, as many
as requested are scored, spread evenly. The cached prior is computed on blocks of all domains in turn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.node.experts.evaluation import Model, Scores, ensemble_loss, losses, scores
from shoal.node.experts.parts import experts_of, part_manifest
from shoal.node.experts.posterior import cached_prior, posterior
from shoal.node.manifest.manifest import Manifest
from shoal.node.manifest.model import AnyModel
from shoal.node.training.data.corpus import load_corpus
from shoal.node.training.models.layout import Layout
from shoal.node.training.models.registry import build
from shoal.protocol.base.errors import LocalError

BLOCK = 2048  # tokens
FOR_PRIOR = 4  # one in so many blocks is for the prior
PRIOR_TOKENS = 12_000  # of a domain

Row = Mapping[str, float]
"""The loss of each domain."""


@dataclass(frozen=True, slots=True, eq=False)
class Domain:
    """Held-out text, (n,) tokens each."""

    name: str
    for_prior: Tensor
    scored: Tensor


def domains(family: Manifest, union: Manifest, tokens: int) -> list[Domain]:
    """The domains of a family's parts; LocalError if `union`, the run on all texts, trains on held-out text."""
    found, held = [], 0
    for part in experts_of(family).parts:
        text = load_corpus(part_manifest(family, part).data).validation
        held += len(text)
        blocks = torch.split(text, BLOCK)
        scored = [block for number, block in enumerate(blocks) if number % FOR_PRIOR]
        found.append(Domain(part.name, _some(blocks[::FOR_PRIOR], PRIOR_TOKENS), _some(scored, tokens)))
    if held != len(load_corpus(union.data).validation):
        raise LocalError("the parts overlap, or one has no held-out text: what they hold out, a model of all trains on")
    return found


def model_of(spec: AnyModel, family: Manifest, theta: Tensor) -> Model:
    """A model of that kind with these parameters, (d,)."""
    model = build(family.model_copy(update={"model": spec}), ())
    Layout.of(model).load(theta, model)
    model.eval()
    return lambda tokens: model(tokens)


class Table:
    """Losses by row and domain, in the order in which rows were measured."""

    def __init__(self, texts: Sequence[Domain], context: int) -> None:
        self.domains, self._context = texts, context
        self.rows: dict[str, Row] = {}

    def single(self, models: Mapping[str, Model]) -> None:
        """Adds a row for each model alone."""
        found = {each.name: losses(self._scores(list(models.values()), each.scored)) for each in self.domains}
        for number, name in enumerate(models):
            self.rows[name] = {domain: row[number] for domain, row in found.items()}

    def mixed(self, experts: Sequence[Model], names: Mapping[str, int | None]) -> Tensor:
        """Adds a row for each mix, of the k most probable experts or of all (None); returns the prior, (E,)."""
        log_prior = self.prior(experts)
        found = {each.name: self._scores(experts, each.scored) for each in self.domains}
        for name, k in names.items():
            self.rows[name] = {domain: ensemble_loss(each, log_prior, k) for domain, each in found.items()}
        return log_prior.exp()

    def prior(self, experts: Sequence[Model]) -> Tensor:
        """The cached prior, log p(j), (E,), on the texts for it: a window of each domain in turn."""
        windows = [self._scores(experts, each.for_prior).per_window() for each in self.domains]
        start = torch.zeros(len(experts), dtype=torch.float64)
        turns = [window for turn in zip(*windows, strict=False) for window in turn]
        return cached_prior((posterior(start, window.sum(0)) for window in turns), len(experts))

    def mean(self, name: str) -> float:
        """A row's mean over domains."""
        return sum(self.rows[name].values()) / len(self.domains)

    def lines(self) -> list[str]:
        """As Markdown."""
        head = ["", *(each.name for each in self.domains), "mean"]
        body = [
            [name, *(f"{loss:.4f}" for loss in row.values()), f"{self.mean(name):.4f}"]
            for name, row in self.rows.items()
        ]
        widths = [max(len(row[column]) for row in (head, *body)) for column in range(len(head))]
        rule = ["-" * widths[0], *(f"{'-' * (width - 1)}:" for width in widths[1:])]
        pad: list[Callable[[str, int], str]] = [str.ljust, *([str.rjust] * (len(head) - 1))]
        return [
            "| " + " | ".join(fit(cell, width) for fit, cell, width in zip(pad, row, widths, strict=True)) + " |"
            for row in (head, rule, *body)
        ]

    def _scores(self, models: Sequence[Model], text: Tensor) -> Scores:
        return scores(models, text, self._context)


def _some(blocks: Sequence[Tensor], tokens: int) -> Tensor:
    """At most so many tokens of the blocks, spread evenly."""
    step = max(1, sum(map(len, blocks)) // tokens)
    return torch.cat([*blocks[::step]])[:tokens]
