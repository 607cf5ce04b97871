"""Measures each step for metrics.jsonl: tokens of all processes that hold different rows, speed, waiting time, peak memory, and
MFU (model FLOPs utilisation): needed operations over what the devices could do in that time, where their peak is known and
products are bfloat16."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import psutil
import torch
from torch import nn

from model_ops.machine import peak_bf16_flops
from model_ops.parallel import World
from model_ops.training.step import StepData

FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT = 2, 2, 2
"""Operations per weight and token: one multiplication and one addition each."""


@dataclass(frozen=True)
class MatrixWork:
    """Sizes of a model's matrix products: weights per token, weights of the head, and attention by window. attention holds
    (heads x head_dim, window or None) of every layer."""

    trained: float
    frozen: float
    head: int
    head_trained: bool
    attention: tuple[tuple[int, int | None], ...]


def needed_flops(
    work: MatrixWork, document_lengths: Iterable[int], head_rows: int, prefix_lengths: Iterable[int] | None = None
) -> float:
    """Operations of one forward and backward pass over these documents. head_rows: number of tokens with a label.
    prefix_lengths: number of tokens before each document that it attends to; None for 0."""
    lengths = list(document_lengths)
    prefixes = [0] * len(lengths) if prefix_lengths is None else list(prefix_lengths)
    passed = FORWARD + INPUT_GRADIENT
    total = sum(lengths) * ((passed + WEIGHT_GRADIENT) * work.trained + passed * work.frozen)
    total += head_rows * work.head * (passed + (WEIGHT_GRADIENT if work.head_trained else 0))
    for width, window in work.attention:
        total += (
            12
            * width
            * sum(
                _pairs(prefix + length, window) - _pairs(prefix, window)
                for prefix, length in zip(prefixes, lengths, strict=True)
            )
        )
    return total


def matrix_work(model: nn.Module) -> MatrixWork | None:
    """Sizes of the matrix products of a Hugging Face causal language model; None for any other module."""
    config = getattr(model, "config", None)
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    if config is None or head is None:
        return None
    trained = frozen = 0.0
    for weights, is_trained in _matrices(model, skip=head, config=config):
        if is_trained:
            trained += weights
        else:
            frozen += weights
    return MatrixWork(trained, frozen, head.weight.numel(), head.weight.requires_grad, attention_widths(config))


QUADRATIC = ("full_attention", "sliding_attention", "chunked_attention", "attention")
"""Kinds of layers whose products of queries and keys grow with the square of the length."""


def attention_widths(config: Any) -> tuple[tuple[int, int | None], ...]:
    """(heads x head_dim, window) of every layer, from a Hugging Face config; (0, None) of a layer whose work grows with the
    length alone (linear attention, convolutions). Latent attention (DeepSeek-V3) has the mean of its two head sizes: of queries
    with keys, and of weights with values."""
    heads = config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    if getattr(config, "kv_lora_rank", None):
        head_dim = (config.qk_nope_head_dim + config.qk_rope_head_dim + config.v_head_dim) / 2
    window = getattr(config, "sliding_window", None)
    if not getattr(config, "use_sliding_window", True):
        window = None
    one_kind = "sliding_attention" if window else "full_attention"
    kinds = getattr(config, "layer_types", None) or [one_kind] * config.num_hidden_layers
    return tuple(
        (round(heads * head_dim), window if "sliding" in kind else None) if kind in QUADRATIC else (0, None) for kind in kinds
    )


def _pairs(length: int, window: int | None) -> float:
    """Number of query-key pairs of causal attention in a document, where the diagonal counts half."""
    if window is None or length <= window:
        return length * length / 2
    return length * window - window * window / 2


def _matrices(model: nn.Module, skip: nn.Module, config: Any) -> Iterator[tuple[float, bool]]:
    """(weights that a token is multiplied with, whether they are trained) of every matrix except the embedding and `skip`."""
    experts = getattr(config, "num_experts", None) or getattr(config, "num_local_experts", None)
    share = getattr(config, "num_experts_per_tok", 0) / experts if experts else 1.0
    for name, module in model.named_modules():
        if module is skip or isinstance(module, nn.Embedding):
            continue
        inputs, outputs = getattr(module, "in_features", None), getattr(module, "out_features", None)
        size = None if inputs is None or outputs is None else inputs * outputs
        weight = getattr(module, "weight", module)
        if size is not None and weight is None:  # frozen, held in buffers (nf4)
            yield size, False
        for own, parameter in module.named_parameters(recurse=False):
            if parameter.ndim == 3:  # stacked experts, of which a token uses a few
                yield parameter.numel() * share, parameter.requires_grad
            elif size is not None and parameter is weight:  # 4-bit weights have a shape of their own
                yield size * (share if ".experts." in name else 1.0), parameter.requires_grad
            elif parameter.ndim == 2 and not own.endswith("bias"):  # experts' biases are stacked
                yield parameter.numel() * (share if ".experts." in name else 1.0), parameter.requires_grad


class StepMeter:
    """Measures the steps of one run. Create it after trained and frozen weights are chosen."""

    def __init__(self, model: nn.Module, world: World, precision: str, peak_flops: float | None = None):
        if peak_flops is None and world.device.type == "cuda" and precision == "bfloat16":
            peak_flops = peak_bf16_flops(torch.cuda.get_device_name(world.device))
        self._world = world
        self._peak_flops = peak_flops
        self._work = matrix_work(model) if peak_flops else None

    def numbers(self, data: StepData, seconds: float) -> dict[str, float]:
        """The numbers of a step that took `seconds`; equal in all processes, except for waiting time and memory."""
        flops = needed_flops(self._work, data.document_lengths, data.target_tokens, data.prefix_lengths) if self._work else 0.0
        held = torch.tensor([data.tokens, data.target_tokens, flops], dtype=torch.float64)
        if self._world.size > 1:
            held = self._world.total(held.to(self._world.device)).cpu()
        tokens, targets, flops = held.tolist()
        seconds = max(seconds, 1e-9)
        numbers = {"tokens": int(tokens), "target_tokens": int(targets), "tokens_per_second": round(tokens / seconds)}
        if self._work and self._peak_flops:
            numbers["mfu"] = round(flops / (seconds * self._world.size * self._peak_flops), 4)
        return {
            **numbers,
            "data_wait_share": round(min(1.0, data.waited_s / seconds), 4),
            "peak_memory_mb": round(peak_memory_mb(self._world.device)),
        }


def peak_memory_mb(device: torch.device) -> float:
    """Peak memory in MiB: of the accelerator if there is one, else of this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    memory = psutil.Process().memory_info()
    if hasattr(memory, "peak_wset"):
        return memory.peak_wset / 2**20
    import resource
    import sys

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)
