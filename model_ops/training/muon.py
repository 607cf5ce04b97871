"""Muon for matrices and AdamW for everything else, as one optimizer.

    optimizer = Muon([{"params": matrices, "matrices": True, "weight_decay": 0.1}, {"params": rest}], lr=2e-5)

A matrix moves by its momentum's nearest semi-orthogonal matrix (Keller Jordan 2024, kellerjordan.github.io/posts/muon;
Newton-Schulz iterations in bfloat16), scaled to the size of AdamW's updates, 0.2 sqrt(max(rows, columns)) (Moonlight,
arXiv 2502.16982), so that one learning rate and one decay serve both halves. The same update as torch.optim.Muon's with
adjust_lr_fn="match_rms_adamw", and for more shapes: a stack of matrices [experts, rows, columns] moves matrix by matrix.

The update needs whole matrices. A sharded one (DTensor) is gathered in every step, on every process, each of which then
keeps its part; only stacks of experts that are sharded by expert stay where they are.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.optim.adamw import adamw

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
ITERATIONS = 5
SMALLEST_NORM = 1e-7


class Muon(torch.optim.Optimizer):
    """Groups with matrices=True hold 2-D parameters or 3-D stacks of them; all others get torch's fused AdamW."""

    def __init__(self, groups: Iterable[dict[str, Any]], lr: float, betas: tuple[float, float] = (0.9, 0.95),
                 eps: float = 1e-8, momentum: float = 0.95, weight_decay: float = 0.0):
        super().__init__(list(groups), {"lr": lr, "betas": betas, "eps": eps, "momentum": momentum,
                                        "weight_decay": weight_decay, "matrices": False, "fused": True})
        for group in self.param_groups:
            for parameter in group["params"]:
                if group["matrices"] and parameter.ndim not in (2, 3):
                    raise ValueError(f"Muon moves matrices and stacks of them, not a tensor of shape {tuple(parameter.shape)}")

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        """One update of every parameter that has a gradient."""
        for group in self.param_groups:
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            if group["matrices"]:
                for parameter in parameters:
                    self._move_matrix(parameter, group)
            elif parameters:
                self._move_by_adamw(parameters, group)

    def _move_matrix(self, parameter: Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state["momentum_buffer"] = torch.zeros_like(parameter)
        momentum = state["momentum_buffer"].lerp_(parameter.grad, 1 - group["momentum"])
        direction = orthogonal(parameter.grad.lerp(momentum, group["momentum"]))
        rows, columns = parameter.shape[-2:]
        parameter.mul_(1 - group["lr"] * group["weight_decay"])
        parameter.add_(direction, alpha=-group["lr"] * 0.2 * math.sqrt(max(rows, columns)))

    def _move_by_adamw(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        for parameter in parameters:
            state = self.state[parameter]
            if not state:
                state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
                state["exp_avg"] = torch.zeros_like(parameter)
                state["exp_avg_sq"] = torch.zeros_like(parameter)
        states = [self.state[parameter] for parameter in parameters]
        adamw(parameters, [parameter.grad for parameter in parameters], [state["exp_avg"] for state in states],
              [state["exp_avg_sq"] for state in states], [], [state["step"] for state in states], fused=True, amsgrad=False,
              beta1=group["betas"][0], beta2=group["betas"][1], lr=group["lr"], weight_decay=group["weight_decay"],
              eps=group["eps"], maximize=False)


def orthogonal(matrix: Float[Tensor, "*stack rows columns"]) -> Float[Tensor, "*stack rows columns"]:
    """Of each matrix U S V^T about U V^T (singular values between 0.7 and 1.2), sharded as it was."""
    if not isinstance(matrix, DTensor):
        return _newton_schulz(matrix)
    if matrix.ndim == 3 and all(placement.is_replicate() or placement == Shard(0) for placement in matrix.placements):
        return DTensor.from_local(_newton_schulz(matrix.to_local()), matrix.device_mesh, matrix.placements, run_check=False,
                                  shape=matrix.shape, stride=matrix.stride())
    whole = _newton_schulz(matrix.full_tensor())
    return distribute_tensor(whole, matrix.device_mesh, matrix.placements, src_data_rank=None)


def _newton_schulz(matrix: Float[Tensor, "*stack rows columns"]) -> Float[Tensor, "*stack rows columns"]:
    """ITERATIONS times X <- a X + (b A + c A A) X with A = X X^T, on the wide side, from X of Frobenius norm 1."""
    a, b, c = COEFFICIENTS
    tall = matrix.shape[-2] > matrix.shape[-1]
    x = matrix.bfloat16().reshape(-1, *matrix.shape[-2:])
    x = x.mT if tall else x
    x = x / torch.linalg.vector_norm(x, dim=(-2, -1), keepdim=True).clamp(min=SMALLEST_NORM)
    for _ in range(ITERATIONS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return (x.mT if tall else x).reshape(matrix.shape).to(matrix.dtype)
