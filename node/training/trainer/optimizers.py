"""The inner optimizers that a manifest may name: AdamW, or Muon for the layers' matrices with AdamW for the rest.

Muon (Jordan, kellerjordan.github.io/posts/muon) makes each update of a matrix nearly orthogonal by a Newton-Schulz
iteration. The update is scaled to the root-mean-square of AdamW's (Liu et al., arXiv 2502.16982), so one learning rate,
one weight decay and one schedule serve both. As its author recommends, the embedding, the head and the norms' gains
stay with AdamW. The implementation is torch's, which reads the learning rate on the CPU; so steps with it are not
recorded (recorded_step.py).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from shoal.node.manifest.method import MethodSpec
from shoal.node.training.models.kind import TrainedModel
from shoal.node.training.models.layout import decays
from shoal.protocol.base.errors import LocalError

MUON_MOMENTUM = 0.95  # Jordan's


def make_optimizers(model: TrainedModel, spec: MethodSpec, device: torch.device) -> tuple[torch.optim.Optimizer, ...]:
    """The optimizers of the manifest's method, each for its own weights; LocalError if this torch lacks them."""
    if spec.optimizer == "adamw":
        return (adamw([weight for _, weight in model.trained()], spec, device, recorded=device.type == "cuda"),)
    if not hasattr(torch.optim, "Muon"):
        raise LocalError(
            f"the run trains with Muon, which torch {torch.__version__} lacks: upgrade it to 2.9 or newer",
            code="package-missing",
        )
    matrices = model.matrices()
    chosen = set(matrices)
    rest = [weight for _, weight in model.trained() if weight not in chosen]
    muon = torch.optim.Muon(
        matrices,
        lr=spec.inner_lr,
        weight_decay=spec.weight_decay,
        momentum=MUON_MOMENTUM,
        adjust_lr_fn="match_rms_adamw",
    )
    return (adamw(rest, spec, device), muon)


def adamw(
    weights: list[nn.Parameter], spec: MethodSpec, device: torch.device, recorded: bool = False
) -> torch.optim.AdamW:
    """AdamW without weight decay for the norms' gains. For a `recorded` step, the learning rate is on the GPU."""
    groups = [
        {"params": [each for each in weights if decays(each.shape)], "weight_decay": spec.weight_decay},
        {"params": [each for each in weights if not decays(each.shape)], "weight_decay": 0.0},
    ]
    lr = torch.tensor(spec.inner_lr, device=device) if recorded else spec.inner_lr
    return torch.optim.AdamW(groups, lr=lr, betas=spec.betas, fused=True, capturable=recorded)


def can_be_recorded(optimizers: tuple[torch.optim.Optimizer, ...]) -> bool:
    """Whether steps of all optimizers run on the GPU alone; torch's Muon reads its learning rate on the CPU."""
    return all(group.get("capturable", False) for each in optimizers for group in each.param_groups)


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Sets the learning rate of the next step."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate
