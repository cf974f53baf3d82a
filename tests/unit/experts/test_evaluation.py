"""An ensemble's loss, compared with a computation by hand, token by token, and with what must hold."""

from __future__ import annotations

from math import exp, log

import pytest
import torch
from torch import Tensor

from shoal.node.experts.evaluation import Scores, ensemble_loss, losses, prior_of, scores
from shoal.node.experts.posterior import mixture, posterior, uniform
from shoal.node.manifest.manifest import ModelSpec
from shoal.node.training.models.decoder import build
from shoal.node.training.trainer.evaluate import validation_loss

CONTEXT = 8
SPEC = ModelSpec(dim=8, layers=1, heads=2, kv_heads=1, hidden=8, context=CONTEXT, vocab=256)
TEXT = torch.tensor(list(b"a man a plan a canal panama, and then some more of it"), dtype=torch.uint8)


def experts(count: int) -> list[torch.nn.Module]:
    return [build(SPEC, seed) for seed in range(count)]


def test_each_experts_own_loss_is_that_of_evaluation() -> None:
    models = experts(2)
    found = losses(scores(models, TEXT, CONTEXT))
    assert found == pytest.approx([validation_loss(model, TEXT, CONTEXT).loss for model in models], abs=1e-5)  # type: ignore[arg-type]


def test_the_ensembles_loss_is_that_of_mixing_token_by_token() -> None:
    models, prior = experts(3), torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64).log()
    total = 0.0
    for first in range(0, len(TEXT) - 1, CONTEXT):
        window = TEXT[first : first + CONTEXT + 1].long()
        seen = torch.zeros(3, dtype=torch.float64)
        for place in range(1, len(window)):
            told = torch.stack([torch.log_softmax(model(window[None, :place])[0, -1].double(), -1) for model in models])
            total -= mixture(posterior(prior, seen), told)[window[place]].item()
            seen += told[:, window[place]]
    assert ensemble_loss(scores(models, TEXT, CONTEXT), prior) == pytest.approx(total / (len(TEXT) - 1), abs=1e-6)


def test_one_expert_of_the_most_probable_is_chosen_by_what_came_before() -> None:
    """Of two experts each is right once: who chooses before it has seen anything takes the first, then the better."""
    table = Scores(torch.tensor([[-2.0, -1.0], [-3.0, -0.5], [-0.1, -9.0]], dtype=torch.float64), (3,))
    assert ensemble_loss(table, uniform(2), k=1) == pytest.approx((2.0 + 0.5 + 9.0) / 3)


def test_windows_begin_with_the_prior_again() -> None:
    row = [[-5.0, -1.0], [-1.0, -1.0]]
    whole = Scores(torch.tensor(row * 2, dtype=torch.float64), (4,))
    cut = Scores(torch.tensor(row * 2, dtype=torch.float64), (2, 2))
    assert ensemble_loss(cut, uniform(2)) == pytest.approx(
        ensemble_loss(Scores(torch.tensor(row).double(), (2,)), uniform(2))
    )
    assert ensemble_loss(cut, uniform(2)) > ensemble_loss(whole, uniform(2))


def test_an_ensemble_of_one_is_that_expert_and_of_equals_any_of_them() -> None:
    (model,) = experts(1)
    alone = scores([model], TEXT, CONTEXT)
    assert ensemble_loss(alone, uniform(1)) == pytest.approx(losses(alone)[0])
    assert ensemble_loss(scores([model] * 3, TEXT, CONTEXT), uniform(3)) == pytest.approx(losses(alone)[0])


def test_the_prior_is_learned_from_whom_texts_fit() -> None:
    """The first window fits the second expert e to 1; uniform before: 0.7 x 0.5 + 0.3 e / (1 + e)."""
    table = Scores(torch.tensor([[-1.0, -0.5], [-1.0, -0.5]], dtype=torch.float64), (2,))
    assert prior_of(table)[1].exp().item() == pytest.approx(0.35 + 0.3 * exp(1) / (1 + exp(1)))
    assert prior_of(table).logsumexp(0).item() == pytest.approx(log(1))


def test_a_model_of_any_kind_will_do() -> None:
    def always(tokens: Tensor) -> Tensor:
        return torch.zeros(*tokens.shape, 256)

    assert losses(scores([always], TEXT, CONTEXT)) == pytest.approx([log(256)])
