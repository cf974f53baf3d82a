"""An image classifier on scikit-learn's digits, in an ordinary loop, trained by everybody who has the run's link.

    python examples/digits.py                     creates a run, and prints the link by which others join it
    python examples/digits.py LINK                joins it, on any machine; run it again to continue

Two members are needed, each with its own node (SHOAL_HOME), which is started if none runs.
"""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from shoal.node import create, join

parser = argparse.ArgumentParser(description="Train a classifier of digits, together.")
parser.add_argument("link", nargs="?", help="of a run to join; without it, a new one is founded")
parser.add_argument("--method", default="diloco", help="of a new run, see docs/methods.md")
parser.add_argument("--rounds", type=int, default=20, help="of a new run")
parser.add_argument("--save", help="where to write the model at the end")
arguments = parser.parse_args()

images, labels = load_digits(return_X_y=True)
inputs, targets = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels)
training, test = slice(0, 1500), slice(1500, None)
batches = DataLoader(TensorDataset(inputs[training], targets[training]), batch_size=32, shuffle=True)

model = nn.Sequential()
model.add_module("layers", nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 10)))
matrices = [each for each in model.parameters() if each.ndim == 2]
others = [each for each in model.parameters() if each.ndim != 2]
groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
optimizer: torch.optim.Optimizer = torch.optim.AdamW(groups, lr=2e-3)
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.998)

method = {"name": arguments.method, "inner_steps": 20, "batch": 32}
rounds = {"last": arguments.rounds, "pace": "steps"}
run = join(arguments.link) if arguments.link else create("digits", method=method, rounds=rounds)
optimizer = run.wrap(optimizer, model)  # the module has the run's weights now
scheduler = run.follow(scheduler)
print(f"others join with: python examples/digits.py {run.link}", flush=True)

while not run.is_over:
    for batch, wanted in batches:
        loss = F.cross_entropy(model(batch), wanted)
        optimizer.zero_grad()
        loss.backward()
        run.report(loss)
        optimizer.step()
        scheduler.step()
        if run.is_over:
            break
    print(f"round {run.progress.round}, step {run.progress.step}: loss {loss.item():.3f}", flush=True)

model.eval()
with torch.no_grad():
    right = (model(inputs[test]).argmax(1) == targets[test]).float().mean().item()
print(f"{right:.1%} of the test images are recognised", flush=True)
if arguments.save:
    torch.save(model.state_dict(), arguments.save)
