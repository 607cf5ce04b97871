"""Builds the optimizer of a run (AdamW, 8-bit AdamW by bitsandbytes, or Muon) and its learning rates. Norms, biases, embeddings
and a tied head do not decay.

Muon moves the matrices of the blocks, also routers, adapters and single experts; AdamW the rest. Its update is the
semi-orthogonal matrix nearest to the momentum (kellerjordan.github.io/posts/muon), scaled by 0.2 sqrt(max(rows, columns)) to
the size of AdamW's (Moonlight, arXiv 2502.16982), as torch.optim.Muon with adjust_lr_fn="match_rms_adamw". It needs whole
matrices: each process gathers a sharded one and keeps its own part of the update."""

import math
from collections.abc import Iterable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.optim.adamw import adamw

from model_ops.jobs import ModelError, filled
from model_ops.machine import products_dtype
from model_ops.training.settings import TrainingSettings


def learning_rate_at(step: int, steps: int, settings: TrainingSettings) -> float:
    """The learning rate of step `step` of `steps`. `settings` are resolved."""
    peak, warmup = filled(settings.learning_rate), round(filled(settings.warmup_share) * steps)
    if step < warmup:
        return peak * (step + 1) / warmup
    floor = filled(settings.final_learning_rate_share)
    match settings.schedule:
        case "cosine":
            factor = floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * _share(step, warmup, steps)))
        case "linear":
            factor = floor + (1 - floor) * (1 - _share(step, warmup, steps))
        case "wsd":
            decay_begins = max(warmup, steps - max(1, round(filled(settings.decay_share) * steps)))
            # the step before the decay has share 0, so every step of the decay is below the peak
            factor = floor + (1 - floor) * (1 - math.sqrt(_share(step, decay_begins - 1, steps)))
        case "constant":
            factor = 1.0
    return peak * factor


def _share(step: int, begins: int, steps: int) -> float:
    """Progress from step `begins` to the last one: 0 up to `begins`, 1 at the last step."""
    return max(0.0, (step - begins) / max(1, steps - 1 - begins))


def build_optimizer(model: nn.Module, settings: TrainingSettings) -> torch.optim.Optimizer:
    """The optimizer of the trained parameters. settings: resolved. Raises ModelError for adamw_8bit if bitsandbytes is not
    installed or weights are sharded."""
    groups = parameter_groups(model, settings)
    rate, betas = filled(settings.learning_rate), (filled(settings.beta1), filled(settings.beta2))
    common: dict[str, Any] = {"lr": rate, "betas": betas, "eps": filled(settings.epsilon)}
    match settings.optimizer:
        case "adamw":
            return torch.optim.AdamW([_only(group, "params", "weight_decay") for group in groups], **common, fused=True)
        case "adamw_8bit":
            return _adamw_8bit([_only(group, "params", "weight_decay", "embeddings") for group in groups], common)
        case "muon":
            return Muon(
                [_only(group, "params", "weight_decay", "matrices") for group in groups],
                **common,
                adamw_share=filled(settings.adamw_rate_share),
                products=products_dtype(settings.precision, next(model.parameters()).device),
            )


def parameter_groups(model: nn.Module, settings: TrainingSettings) -> list[dict[str, Any]]:
    """Groups of trained parameters by weight_decay, matrices (of blocks) and embeddings; groups with decay come first.
    Parameters that are sharded over different meshes are in different groups, since no kernel takes both."""
    embeddings = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    head = {id(module.weight) for module in _heads(model)}
    groups: dict[tuple, dict[str, Any]] = {}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        is_embedding, is_bias = id(parameter) in embeddings, "bias" in name.rpartition(".")[2]
        decays = parameter.ndim >= 2 and not is_embedding and not is_bias
        stacked = parameter.ndim == 3 and ".experts." in name
        matrix = decays and id(parameter) not in head and (parameter.ndim == 2 or stacked)
        mesh = parameter.device_mesh if isinstance(parameter, DTensor) else None
        kind = (not decays, not matrix, is_embedding, mesh)
        groups.setdefault(
            kind,
            {
                "params": [],
                "weight_decay": settings.weight_decay if decays else 0.0,
                "matrices": matrix,
                "embeddings": is_embedding,
            },
        )["params"].append(parameter)
    return [groups[kind] for kind in sorted(groups, key=lambda kind: kind[:3])]


def reserve_state(optimizer: torch.optim.Optimizer) -> None:
    """Allocates AdamW's moments before the first step, so that a lack of memory shows before any work is lost, and long-lived
    memory is not fragmented by the temporary memory of a step."""
    if type(optimizer) is not torch.optim.AdamW:
        return
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if not optimizer.state[parameter]:
                optimizer.state[parameter].update(
                    step=torch.zeros((), device=parameter.device if parameter.is_cuda else "cpu"),
                    exp_avg=torch.zeros_like(parameter, memory_format=torch.preserve_format),
                    exp_avg_sq=torch.zeros_like(parameter, memory_format=torch.preserve_format),
                )


def state_bytes(optimizer: torch.optim.Optimizer) -> int:
    """Bytes of the optimizer's state in this process after its first step."""
    size = 0
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            elements = (parameter.to_local() if isinstance(parameter, DTensor) else parameter).numel()
            size += elements * (4 if group.get("matrices") else 2 if group.get("in_8_bits") and elements >= 4_096 else 8)
    return size


def _heads(model: nn.Module) -> list[nn.Module]:
    """The modules that compute logits or scores, including the heads of a drafter."""
    heads = [module for name, module in model.named_modules() if name.rpartition(".")[2] in ("lm_head", "score")]
    named = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    return [module for module in [*heads, named] if isinstance(getattr(module, "weight", None), nn.Parameter)]


def _only(group: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: group[name] for name in names}


def _adamw_8bit(groups: list[dict[str, Any]], common: dict[str, Any]) -> torch.optim.Optimizer:
    try:
        from model_ops.training.adamw_8bit import AdamW8bit
    except ModuleNotFoundError as error:
        if error.name != "bitsandbytes":
            raise
        raise ModelError(
            'optimizer adamw_8bit needs bitsandbytes; install "millrace[qlora]" or choose optimizer: adamw'
        ) from error
    if any(isinstance(parameter, DTensor) for group in groups for parameter in group["params"]):
        raise ModelError(
            "optimizer adamw_8bit does not support sharded weights; choose optimizer: adamw, or a mesh that does not shard"
        )
    return AdamW8bit(
        [
            {"params": group["params"], "weight_decay": group["weight_decay"], "in_8_bits": not group["embeddings"]}
            for group in groups
        ],
        **common,
    )


COEFFICIENTS = (3.4445, -4.7750, 2.0315)
ITERATIONS = 5
SMALLEST_NORM = 1e-7


class Muon(torch.optim.Optimizer):
    """Muon for groups with matrices=True (2-D parameters or 3-D stacks); torch's fused AdamW for all other groups."""

    def __init__(
        self,
        groups: Iterable[dict[str, Any]],
        lr: float,
        betas: tuple[float, float] = (0.9, 0.95),
        eps: float = 1e-8,
        momentum: float = 0.95,
        weight_decay: float = 0.0,
        adamw_share: float = 1.0,
        products: torch.dtype = torch.bfloat16,
    ):
        super().__init__(
            list(groups),
            {
                "lr": lr,
                "betas": betas,
                "eps": eps,
                "momentum": momentum,
                "weight_decay": weight_decay,
                "adamw_share": adamw_share,
                "matrices": False,
                "fused": True,
            },
        )
        self.products = products
        for group in self.param_groups:
            for parameter in group["params"]:
                if group["matrices"] and parameter.ndim not in (2, 3):
                    raise ValueError(f"Muon takes matrices and stacks of matrices, not shape {tuple(parameter.shape)}")

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        """Updates every parameter that has a gradient."""
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
        direction = orthogonal(parameter.grad.lerp(momentum, group["momentum"]), self.products)
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
        adamw(
            parameters,
            [parameter.grad for parameter in parameters],
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            [state["step"] for state in states],
            fused=True,
            amsgrad=False,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            lr=group["lr"] * group["adamw_share"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )


def orthogonal(
    matrix: Float[Tensor, "*stack rows columns"], products: torch.dtype = torch.bfloat16
) -> Float[Tensor, "*stack rows columns"]:
    """Approximates U V^T for each matrix U S V^T (singular values between 0.7 and 1.2); keeps the sharding and the dtype."""
    if not isinstance(matrix, DTensor):
        return _newton_schulz(matrix, products)
    if matrix.ndim == 3 and all(placement.is_replicate() or placement == Shard(0) for placement in matrix.placements):
        return DTensor.from_local(
            _newton_schulz(matrix.to_local(), products),
            matrix.device_mesh,
            matrix.placements,
            run_check=False,
            shape=matrix.shape,
            stride=matrix.stride(),
        )
    whole = _newton_schulz(matrix.full_tensor(), products)
    return distribute_tensor(whole, matrix.device_mesh, matrix.placements, src_data_rank=None)


def _newton_schulz(matrix: Float[Tensor, "*stack rows columns"], products: torch.dtype) -> Float[Tensor, "*stack rows columns"]:
    """Newton-Schulz: ITERATIONS times X <- a X + (b A + c A A) X with A = X X^T, from X with Frobenius norm 1. Tall matrices
    are transposed first."""
    a, b, c = COEFFICIENTS
    tall = matrix.shape[-2] > matrix.shape[-1]
    x = matrix.to(products).reshape(-1, *matrix.shape[-2:])
    x = x.mT if tall else x
    x = x / torch.linalg.vector_norm(x, dim=(-2, -1), keepdim=True).clamp(min=SMALLEST_NORM)
    for _ in range(ITERATIONS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return (x.mT if tall else x).reshape(matrix.shape).to(matrix.dtype)
