"""A worker's weights and answers that they contain already, or that can no longer be shown to the worker."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from shoal.node.ipc.messages import Landing, Train
from shoal.node.ipc.vectors import moments_size
from shoal.node.training.methods.diloco import DiLoCo
from shoal.node.training.methods.late import DelayedDiLoCo, EagerDiLoCo
from shoal.node.training.methods.method import Method
from shoal.node.training.methods.streaming import Streaming
from shoal.node.training.models.layout import Layout
from shoal.node.worker.weights import WorkerWeights
from tests.unit.methods.agenda_kit import Weights

D, MEMBERS = 3, 2
LAYOUT = Layout({"w": (D,)})


class Bench:
    """A worker's weights, and the vectors that its daemon writes."""

    def __init__(self, method: Method) -> None:
        self.model = Weights(D)
        self.agreed = np.zeros(len(method.reads) * D, dtype=np.float32)
        self.answer = np.zeros(D, dtype=np.float32)
        own = np.zeros(moments_size(D, len(method.keeps)), dtype=np.float32)
        self.overtaken_at = 0  # in which reading from now the daemon begins to write for the next order
        self.weights = WorkerWeights(method, self.model, self.agreed, own, self.answer, self._is_loaded)

    def _is_loaded(self, order: Train) -> bool:
        self.overtaken_at -= 1
        if self.overtaken_at:
            return True
        self.agreed[:] = self.answer[:] = np.nan
        return False

    def order(self, round: int, version: int, theta: float, *landings: Landing, fresh: bool = False) -> float:
        """Take an order for `round` while the parameters of `version` are `theta`; the weights after it."""
        self.agreed[:D] = theta
        self.weights.take(Train(1, round, 0, version, is_fresh=fresh, landings=landings))
        return self.weight

    def train(self, by: float) -> None:
        self.model.theta = self.model.theta - by

    def contribute(self, round: int) -> float:
        return float(self.weights.contribute(round, self.model.read(), torch.empty(D))[0])

    @property
    def weight(self) -> float:
        assert len(set(self.model.theta.tolist())) == 1
        return self.model.theta[0].item()


def eager() -> Bench:
    return Bench(EagerDiLoCo(5, 1.0, 0.0))


def there(round: int, is_shown: bool = True) -> Landing:
    return Landing(round, True, is_shown, MEMBERS, ())


def test_an_answer_counts_once_where_a_new_worker_began_with_it() -> None:
    """The worker died in the second stint of round 6, while round 5 was committed: its successor begins with that."""
    bench = eager()
    assert bench.order(6, 5, 10.0) == 10.0
    bench.answer[:] = 1.0
    assert bench.order(7, 5, 10.0, there(5)) == 10.0
    bench.train(4.0)
    assert bench.contribute(7) == 4.0
    bench.answer[:] = 3.0
    assert bench.order(8, 6, 7.0, there(6)) == 10.0 - 4.0 / MEMBERS - 3.0


def test_a_fragment_is_not_mixed_in_where_a_new_worker_began_with_it() -> None:
    bench = Bench(Streaming(LAYOUT, 1, 4, 2, 0.5, 1.0, 0.0))
    assert bench.order(6, 5, 10.0) == 10.0
    bench.train(4.0)
    assert bench.order(6, 5, 10.0, there(5)) == 6.0
    assert bench.order(7, 6, 2.0, there(6)) == 4.0


def test_who_can_no_longer_be_shown_an_answer_begins_anew_with_what_came_of_it() -> None:
    """Two rounds were committed without it: of the first one the mean is not kept."""
    bench = eager()
    bench.order(1, 0, 10.0, fresh=True)
    bench.train(4.0)
    assert bench.contribute(1) == 4.0
    bench.order(2, 0, 10.0, Landing(0, False, False, MEMBERS, ()))
    bench.answer[:] = 1.0
    assert bench.order(4, 2, 7.0, there(1, is_shown=False), there(2)) == 7.0
    bench.train(2.0)
    assert bench.contribute(4) == 2.0, "what it had trained before is no part of it"
    bench.answer[:] = 3.0
    assert bench.order(5, 3, 4.0, there(3)) == 7.0 - 2.0 / MEMBERS - 3.0


@pytest.mark.parametrize("reads", [1, 2])
def test_what_was_written_over_while_it_was_read_is_not_taken(reads: int) -> None:
    """The agreed vectors were (the first reading of two), or the answer was (the second)."""
    bench = eager()
    bench.order(1, 0, 10.0, fresh=True)
    bench.train(4.0)
    bench.contribute(1)
    assert bench.order(2, 0, 10.0, Landing(0, False, False, MEMBERS, ())) == 10.0 - 4.0 / MEMBERS
    bench.train(2.0)
    bench.answer[:], bench.overtaken_at = 1.0, reads
    assert not bench.weights.take(Train(1, 3, 0, 1, landings=(there(1),)))
    assert bench.weight == 6.0, "as it was trained"
    bench.answer[:] = 1.0
    assert bench.order(3, 1, 9.0, there(1)) == 8.0 - 2.0 / MEMBERS - (1.0 - 4.0 / MEMBERS)


def test_a_beginning_that_was_written_over_is_begun_again() -> None:
    bench = eager()
    bench.overtaken_at = 1
    assert not bench.weights.take(Train(1, 1, 0, 0, is_fresh=True))
    assert bench.order(1, 0, 10.0) == 10.0, "it has no weights yet"
    bench.overtaken_at = 1
    assert not bench.weights.take(Train(1, 8, 0, 7, is_fresh=True))
    assert bench.order(8, 7, 5.0, fresh=True) == 5.0


@pytest.mark.parametrize("method", [DiLoCo(5, 1.0, 0.0), DelayedDiLoCo(5, 1.0, 0.0), EagerDiLoCo(5, 1.0, 0.0)])
def test_a_contribution_of_all_numbers_is_made_where_the_weights_were_copied_to(method: Method) -> None:
    """Each temporary of the model's size counts on a small machine."""
    theta = torch.tensor([1.0, 2.0, -3.0])
    agreed, private = method.begin(torch.tensor([4.0, 4.0, 4.0]))
    payload = method.contribute(0, theta, agreed, private).payload
    assert payload.tolist() == [3.0, 2.0, 7.0]
    assert payload.data_ptr() == theta.data_ptr()


def test_no_answer_is_lost_where_the_state_has_all_that_is_needed() -> None:
    bench = Bench(Streaming(LAYOUT, 1, 4, 2, 0.5, 1.0, 0.0))
    bench.order(1, 0, 10.0, fresh=True)
    assert bench.order(4, 2, 6.0, there(1, is_shown=False)) == 8.0, "the weights go on"
