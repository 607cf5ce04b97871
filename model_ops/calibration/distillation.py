"""Quantization-aware distillation: trains a model's matrices so that, rounded in every forward pass as the scheme stores them
(`quantization.straight_through`), they predict as the float model does. The codes are exactly those of the last step. Experts
that are stored as matrices of their own are not trained."""

from collections.abc import Sequence
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn

from model_ops.calibration.distillation_settings import DistilRoundingSettings
from model_ops.calibration.weights import CalibratedWeights
from model_ops.documents import Document, PackedPlan, read_chats, to_batches
from model_ops.files import renamed_when_complete
from model_ops.jobs import Job, ModelError, Progress
from model_ops.machine import Precision, concrete, products_in
from model_ops.models import load_model, training_device
from model_ops.objectives import Divergence, distillation_loss
from model_ops.parallel import World
from model_ops.quantization import BlockLayers, Scheme, compute_rounded, share_codes
from model_ops.tensors import Batch, Loss
from model_ops.training import first_documents, train

MEASURED_TOKENS = 8_192
"""Tokens of held-out rows on which the divergence is measured before and after."""


def distil_rounding(
    job: Job, settings: DistilRoundingSettings, scheme: Scheme, layers: BlockLayers, progress: Progress
) -> tuple[CalibratedWeights, dict[str, Any]]:
    """Trains, and returns the stored tensors of every layer with metrics: divergence on held-out rows before and after. Raises
    ModelError if the dataset has no row for this model."""
    device, source = training_device(), job.input("model")
    settings = concrete(settings.resolved(), device)
    if "dataset" not in job.inputs:
        raise ModelError("quantize.distil needs a dataset to train on: give one, or set quantize.distil.enabled to false")
    chats = read_chats(job.input("dataset"), source, settings, job.inputs.get("served"))
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
    metrics = {**result.metrics(chats.counts), "divergence_before": before, "divergence_after": after}
    return CalibratedWeights(dict.fromkeys(layers.linear, file), []), metrics


@torch.no_grad()
def divergence(model: nn.Module, loss: Loss[Batch], documents: Sequence[Document], precision: Precision) -> float:
    """KL(float || rounded) in nats per assistant token of some documents; nan if they have none."""
    model.eval()
    device, total, count = next(model.parameters()).device, 0.0, 0.0
    for batch in to_batches(documents):
        with products_in(precision, device):
            kl = loss(model, batch.to(device)).metrics["kl"]
        total, count = total + float(kl.sum), count + float(kl.count)
    return total / count if count else float("nan")
