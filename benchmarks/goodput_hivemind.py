"""One peer that trains with hivemind.Optimizer until it is killed, in a Python of its own; see goodput.py.

hivemind trains in one of two ways, and this is use_local_updates=True: peers make optimizer steps of their own, and
average their weights at the end of each epoch, which is the nearest that it has to local SGD and DiLoCo. (In the other
way nobody's weights change before the gradients of all are averaged.) Its settings:

- target_batch_size, the samples of an epoch: peers x inner steps x batch, so that both systems average as often.
- matchmaking_time 3 s, of the 3 to 5 s that its documentation recommends for small local runs, and averaging_timeout
  10 s: an average takes a part of a second once its group is found.
- target_group_size: all peers, who are known to be so many; so a group that is complete does not wait any longer.
- request_timeout: half of matchmaking_time, as it has to be shorter.
- delay_state_averaging=False: a peer waits for its average before its next step either way. With the default, the
  others count it meanwhile as one that trains, and end the next epoch after a step or two, which is much slower.
- All others are its defaults. So weights alone are averaged, in fp32, and a dead peer is counted for up to 60 s.

The model and AdamW are those of Shoal's worker in sizes, operations, and learning rate, with one thread, too.

A peer that starts finds out that it is behind, and loads weights and the optimizer from another one: hivemind does so
by itself. It writes what it tells to a file, a JSON line each: its address, and each average that it has been in: when
that ended (`time.monotonic`), the epoch, and the tokens that came in with it. These are what this peer has trained on
since its last average, in one epoch or, after an average that failed, in several, without what it has dropped when it
loaded the weights of another one.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any

import hivemind
import torch
import torch.nn.functional as F
from kit.training import HivemindTask, Training
from torch import Tensor, nn

RATE, BETAS, DECAY, CLIP = 2e-3, (0.9, 0.95), 0.1, 1.0  # the defaults of Shoal's manifests
AVERAGED = "Averaged parameters with"  # peers: how the log of its averager begins to tell a success


def main() -> None:
    """Train until this process is killed."""
    torch.set_num_threads(1)
    task, training, averages = HivemindTask(**json.loads(sys.argv[1])), Training(), Averages()
    with Path(task.reports).open("a", buffering=1, encoding="utf-8") as reports:
        dht = hivemind.DHT(start=True, host_maddrs=["/ip4/127.0.0.1/tcp/0"], initial_peers=task.known or None)
        reports.write(json.dumps({"address": str(dht.get_visible_maddrs()[0])}) + "\n")
        model = Decoder(training)
        optimizer = _optimizer(dht, model, task, training)
        tokens = 0  # since the last average
        while True:
            tokens += training.tokens
            _step(model, optimizer, training)
            for ended in averages.ended():
                report = {"at": ended, "epoch": optimizer.local_epoch, "tokens": tokens}
                reports.write(json.dumps(report) + "\n")
                tokens = 0
            if optimizer.has_loaded():
                tokens = 0


def _optimizer(dht: hivemind.DHT, model: nn.Module, task: HivemindTask, training: Training) -> Optimizer:
    return Optimizer(
        dht=dht,
        run_id="goodput",
        batch_size_per_step=training.batch,
        target_batch_size=task.peers * training.inner_steps * training.batch,
        optimizer=torch.optim.AdamW(model.parameters(), RATE, BETAS, weight_decay=DECAY, fused=True),
        use_local_updates=True,
        delay_state_averaging=False,
        matchmaking_time=task.matchmaking,
        averaging_timeout=task.averaging,
        averager_opts={"target_group_size": task.peers, "request_timeout": task.matchmaking / 2},
        verbose=True,  # or Averages hears of none
    )


def _step(model: Decoder, optimizer: Optimizer, training: Training) -> None:
    """One step on random bytes, which cost as much as others."""
    batch = torch.randint(training.vocab, (training.batch, training.context + 1))
    optimizer.zero_grad()
    loss = F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
    torch.autograd.backward(loss)
    nn.utils.clip_grad_norm_(model.parameters(), CLIP)
    optimizer.step()


class Optimizer(hivemind.Optimizer):  # type: ignore[misc]
    """hivemind's, which also tells that it has dropped the peer's own weights for those of another one."""

    _has_loaded = False

    def load_state_from_peers(self, **options: Any) -> None:
        """See hivemind.Optimizer, which calls this when it is behind."""
        super().load_state_from_peers(**options)
        self._has_loaded = True

    def has_loaded(self) -> bool:
        """Whether it has since this was last asked."""
        answer, self._has_loaded = self._has_loaded, False
        return answer


class Averages(logging.Handler):
    """The times of the averages that have succeeded, which hivemind tells in its log alone."""

    def __init__(self) -> None:
        super().__init__()
        self._times = deque[float]()
        logging.getLogger("hivemind.optim.state_averager").addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """See logging.Handler."""
        if record.getMessage().startswith(AVERAGED):
            self._times.append(time.monotonic())

    def ended(self) -> list[float]:
        """Those since this was last asked."""
        return [self._times.popleft() for _ in range(len(self._times))]


class Decoder(nn.Module):
    """The operations of Shoal's decoder: RMSNorm, rotary position embeddings, SwiGLU, tied embeddings."""

    def __init__(self, training: Training) -> None:
        super().__init__()
        self.embedding = nn.Embedding(training.vocab, training.dim)
        nn.init.normal_(self.embedding.weight, std=0.02)
        self.layers = nn.ModuleList(Layer(training) for _ in range(training.layers))
        self.norm = nn.RMSNorm(training.dim)
        self.head_size = training.dim // training.heads

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits (B, T, V) for tokens (B, T)."""
        x = self.embedding(tokens)
        frequency = 10_000.0 ** -(torch.arange(0, self.head_size, 2) / self.head_size)
        angle = torch.arange(tokens.shape[1])[:, None] * torch.cat((frequency, frequency))
        rope = angle.cos(), angle.sin()
        for layer in self.layers:
            x = layer(x, rope)
        return F.linear(self.norm(x), self.embedding.weight)


class Layer(nn.Module):
    """Attention, then the gated MLP."""

    def __init__(self, training: Training) -> None:
        super().__init__()
        dim, hidden = training.dim, training.hidden
        self.heads = training.heads
        self.before_attention, self.before_mlp = nn.RMSNorm(dim), nn.RMSNorm(dim)
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(dim, hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(hidden, dim, bias=False)

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
        """The residual stream (B, T, D) after this layer."""
        normed = self.before_attention(x)
        q, k, v = (part(normed).unflatten(2, (self.heads, -1)).transpose(1, 2) for part in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(rotate(q, rope), rotate(k, rope), v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).flatten(2))
        normed = self.before_mlp(x)
        out: Tensor = x + self.down(F.silu(self.gate(normed)) * self.up(normed))
        return out


def rotate(x: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
    """Queries or keys, turned by their positions."""
    cos, sin = rope
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


if __name__ == "__main__":
    main()
