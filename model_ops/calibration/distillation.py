"""Quantization-aware distillation: trains a model's matrices so that, rounded, they predict as the float model does.

    found, told = distil_rounding(job, settings, scheme, layers, progress)      # Calibrated, metrics
    compute_rounded_sums(model, ["model.layers.0.mlp.up_proj"], scheme, LoraSettings(rank=16))      # in place; only A, B learn

The teacher is the model itself, unrounded; the student has its weights, rounded in every forward pass as the scheme stores
them, activations included (model_ops.quantization.straight_through). The loss is KL(float || rounded) at assistant tokens of
the training rows. Only matrices that are rounded are trained, so embeddings, norms and the head stay those of the model, and
the codes are exactly those that the last step computed with. Experts that are stored as matrices of their own are not trained.

Method full trains every weight of the matrices. Method lora trains adapters (arXiv 2106.09685), rounds W + scaling B A, and
shares the frozen weights between teacher and student.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel

from model_ops.adapters import LoraLinear, LoraSettings
from model_ops.calibration.distillation_settings import DistilRoundingSettings
from model_ops.calibration.weights import CalibratedWeights
from model_ops.documents import Document, PackedPlan, read_chats, to_batches
from model_ops.files import read_directory, renamed_when_complete
from model_ops.jobs import Job, ModelError, Progress
from model_ops.machine import concrete, products_in
from model_ops.models import load_model, training_device
from model_ops.objectives import Divergence, distillation_loss
from model_ops.parallel import World
from model_ops.quantization import BlockLayers, Scheme, SharedCodes, compute_rounded, served_layer, share_codes
from model_ops.tensors import Loss
from model_ops.training import first_documents, train

MEASURED_TOKENS = 8_192
"""Tokens of held-out rows on which the divergence is measured before and after."""


def distil_rounding(
    job: Job, settings: DistilRoundingSettings, scheme: Scheme, layers: BlockLayers, progress: Progress
) -> tuple[CalibratedWeights, dict[str, Any]]:
    """Trains, and returns the stored tensors of every layer with metrics: divergence on held-out rows before and after.

    Raises ModelError if the dataset has no row for this model.
    """
    device, source = training_device(), job.input("model")
    settings = concrete(settings.resolved(), device)
    if "dataset" not in job.inputs:
        raise ModelError("quantize.distil needs a dataset to train on: give one, or set quantize.distil.enabled to false")
    chats = read_chats(job.input("dataset"), source, settings, job.inputs.get("served"))
    if settings.method == "lora":
        half = settings.precision == "bfloat16" and all(header.dtype == "BF16" for header in read_directory(source).values())
        student = load_model(source, torch.bfloat16 if half else torch.float32, device=device)
        student.requires_grad_(False)
        teacher = twin_of(student, source)
        rounded = compute_rounded_sums(
            student,
            layers.linear.values(),
            scheme,
            LoraSettings(rank=settings.lora.rank, alpha=settings.lora.alpha),
            settings.seed,
        )
    else:
        teacher, student = (load_model(source, device=device).requires_grad_(False) for _ in range(2))
        rounded = compute_rounded(student, layers.linear.values(), scheme)
        for layer in rounded.values():
            layer.weight.requires_grad_(True)
    loss = distillation_loss(teacher, Divergence(settings.temperature))
    held_out = first_documents(chats.validation or chats.documents, MEASURED_TOKENS)
    before = divergence(student, loss, held_out, settings.precision)
    with share_codes(rounded.values()):
        result = train(
            student,
            PackedPlan(chats.documents, settings),
            loss,
            settings,
            job.output / ".work",
            progress,
            "distil rounding",
            world=World.alone(device),
        )
    after = divergence(student, loss, held_out, settings.precision)
    file = job.output / ".work" / "rounded.safetensors"
    stored = {
        f"{layer}.{part}": tensor.cpu().contiguous()
        for layer, module in layers.linear.items()
        for part, tensor in rounded[module].encoded().items()
    }
    with renamed_when_complete(file) as temporary:
        save_file(stored, temporary)
    told = {**result.metrics(chats.counts), "divergence_before": before, "divergence_after": after}
    return CalibratedWeights(dict.fromkeys(layers.linear, file), []), told


def twin_of(model: PreTrainedModel, source: Path) -> PreTrainedModel:
    """A second model of the same directory that shares every parameter of `model`: layers may be replaced in one of them. Both
    are in memory whole while the second is read."""
    twin = load_model(source, model.dtype, device=model.device)
    for name, parameter in model.named_parameters(remove_duplicate=False):
        layer, _, own = name.rpartition(".")
        twin.get_submodule(layer).register_parameter(own, parameter)
    return twin


@torch.no_grad()
def divergence(model: nn.Module, loss: Loss, documents: Sequence[Document], precision: str) -> float:
    """KL(float || rounded) in nats per assistant token of some documents; nan if they have none."""
    model.eval()
    device, total, count = next(model.parameters()).device, 0.0, 0.0
    for batch in to_batches(documents):
        with products_in(precision, device):
            kl = loss(model, batch.to(device)).metrics["kl"]
        total, count = total + float(kl.sum), count + float(kl.count)
    return total / count if count else float("nan")


class RoundedLoraLinear(SharedCodes, LoraLinear):
    """A Linear layer with an adapter, whose sum W + scaling B A is rounded in each forward. Only A and B learn.

    The backward pass decodes or rounds again instead of keeping rounded weights, and the gradient of the weight is never whole:
    memory is that of an adapter and, where a step shares them, of the codes.
    """

    scheme: Scheme

    def encode(self) -> Mapping[str, Tensor]:
        return self.scheme.load_layer().encode(self.weight.float() + self.update())

    def rounded(self, dtype: torch.dtype) -> Float[Tensor, "out in"]:
        """The weight that the present codes stand for."""
        return self.scheme.load_layer().decode(self.encoded()).to(dtype)

    def forward(self, hidden: Float[Tensor, "*tokens in"]) -> Float[Tensor, "*tokens out"]:
        kind = hidden.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else hidden.dtype
        with torch.autocast(kind, enabled=False):
            output = _RoundedProduct.apply(hidden.to(dtype).reshape(-1, self.in_features), self.lora_A, self.lora_B, self)
        return output.view(*hidden.shape[:-1], self.out_features)


class _RoundedProduct(torch.autograd.Function):
    """The product with rounded weights; A and B learn as if their sum with the weight was not rounded."""

    @staticmethod
    def forward(ctx, rows: Tensor, down: Tensor, up: Tensor, layer: RoundedLoraLinear) -> Tensor:
        ctx.save_for_backward(rows, down, up)
        ctx.layer = layer
        if layer.scheme.activations is not None:
            shape = layer.out_features, layer.in_features
            return served_layer(layer.scheme, layer.encoded(), shape, layer.bias, rows.dtype)(rows)
        return F.linear(rows, layer.rounded(rows.dtype), None if layer.bias is None else layer.bias.to(rows.dtype))

    @staticmethod
    def backward(ctx, gradient: Tensor):
        rows, down, up = ctx.saved_tensors
        layer, dtype = ctx.layer, gradient.dtype
        of_low = layer.scaling * (gradient @ up.to(dtype))
        of_down = (of_low.T @ rows.to(dtype)).to(down.dtype)
        of_up = layer.scaling * (gradient.T @ (rows.to(dtype) @ down.to(dtype).T)).to(up.dtype)
        of_rows = (gradient @ layer.rounded(dtype)).to(rows.dtype) if ctx.needs_input_grad[0] else None
        return of_rows, of_down, of_up, None


def compute_rounded_sums(
    model: nn.Module, modules: Iterable[str], scheme: Scheme, adapters: LoraSettings, seed: int = 0
) -> dict[str, RoundedLoraLinear]:
    """Replaces Linear modules by rounded ones with adapters. The same seed draws the same adapters on every device. Returns
    the layers by name."""
    found, generator = {}, torch.Generator().manual_seed(seed)
    for name in modules:
        parent, _, child = name.rpartition(".")
        found[name] = RoundedLoraLinear.over(model.get_submodule(name), adapters, generator)
        found[name].scheme = scheme
        setattr(model.get_submodule(parent), child, found[name])
    return found
