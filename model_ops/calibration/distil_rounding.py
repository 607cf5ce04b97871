"""Quantization-aware distillation: trains a model's matrices so that, rounded, they say what the float model does.

    found, told = distil_rounding(job, settings, scheme, layers, progress)      # Calibrated, metrics

Teacher is the model itself, unrounded; the student has its weights, rounded in every forward pass as the scheme stores them,
activations included (model_ops.quantization.straight_through). Minimised is KL(float || rounded) at assistant tokens of the
training rows. Only matrices that are rounded are trained, so embeddings, norms and the head stay those of the model, and the
codes are exactly those that the last step computed with. Experts that are stored as matrices of their own are not trained.

method full trains every weight of the matrices; lora trains adapters, rounds W + scaling B A, and shares the frozen weights
between teacher and student.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn
from transformers import PreTrainedModel

from model_ops.atomic_files import renamed_when_complete
from model_ops.calibration.calibrated_weights import Calibrated
from model_ops.calibration.distil_rounding_settings import DistilRoundingSettings
from model_ops.calibration.rounded_adapters import compute_rounded_sums
from model_ops.errors import ModelError
from model_ops.job import Job
from model_ops.loss import Loss
from model_ops.models.lora_settings import LoraSettings
from model_ops.models.model_directory import load_model, training_device
from model_ops.objectives.distillation import Divergence, distillation_loss
from model_ops.parallel.world import World
from model_ops.precision import concrete, products_in
from model_ops.progress import Progress
from model_ops.quantization.block_layers import BlockLayers
from model_ops.quantization.scheme import Scheme
from model_ops.quantization.straight_through import compute_rounded
from model_ops.tensor_files import read_directory
from model_ops.training.chats import read_chats
from model_ops.training.documents import Document
from model_ops.training.packing import PackedPlan, to_batches
from model_ops.training.trainer import train
from model_ops.training.validation import first_documents

MEASURED_TOKENS = 8_192
"""Tokens of held-out rows on which the divergence is measured before and after."""


def distil_rounding(job: Job, settings: DistilRoundingSettings, scheme: Scheme, layers: BlockLayers,
                    progress: Progress) -> tuple[Calibrated, dict[str, Any]]:
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
        rounded = compute_rounded_sums(student, layers.linear.values(), scheme,
                                       LoraSettings(rank=settings.lora.rank, alpha=settings.lora.alpha), settings.seed)
    else:
        teacher, student = (load_model(source, device=device).requires_grad_(False) for _ in range(2))
        rounded = compute_rounded(student, layers.linear.values(), scheme)
        for layer in rounded.values():
            layer.weight.requires_grad_(True)
    loss = distillation_loss(teacher, Divergence(settings.temperature))
    held_out = first_documents(chats.validation or chats.documents, MEASURED_TOKENS)
    before = divergence(student, loss, held_out, settings.precision)
    result = train(student, PackedPlan(chats.documents, settings), loss, settings, job.output / ".work", progress,
                   "distil rounding", world=World.alone(device))
    after = divergence(student, loss, held_out, settings.precision)
    file = job.output / ".work" / "rounded.safetensors"
    stored = {f"{layer}.{part}": tensor.cpu().contiguous() for layer, module in layers.linear.items()
              for part, tensor in rounded[module].encoded().items()}
    with renamed_when_complete(file) as temporary:
        save_file(stored, temporary)
    told = {**result.metrics(chats.counts), "divergence_before": before, "divergence_after": after}
    return Calibrated(dict.fromkeys(layers.linear, file), []), told


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
