"""Measures the memory of one micro-batch, forward and backward, by running the model's code on fake tensors.

    memory = trace_micro_batch(config, TraceSettings(tokens=8_192, head_rows=5_000, checkpointing="full"))
    memory.peak(layers=32, accumulating=True)

Blocks, checkpointing and loss are the code that trains, on tensors with shape and dtype but no storage, so no table of bytes
per token could differ from the code. Two models are run, with two and with three blocks; every further block adds as much as
the third:

    forward   peak before the head                                      grows by `saved`, the activations that a block saves
    head      peak while the loss is computed                           grows by `saved`
    last      peak of the last block's backward pass                    grows by `saved`
    first     peak of the first block's and embedding's backward pass   does not grow: saved activations are freed

Gradients of weights are not included; memory_plan counts them, because it knows how they are sharded."""

from __future__ import annotations

import copy
import weakref
from dataclasses import dataclass, fields
from typing import Any, Literal

import torch
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from model_ops.adapters import LoraSettings, add_adapters
from model_ops.families import blocks_of
from model_ops.jobs import ModelError
from model_ops.losses import Head, chunked_head, cross_entropy_rows
from model_ops.models import packed_attention
from model_ops.objectives import Divergence, distillation_rows
from model_ops.tensors import Boundaries, torch_internals, use_memory_efficient_layers
from model_ops.training import ActivationCheckpointing, checkpoint_activations


@dataclass(frozen=True)
class TraceSettings:
    """One micro-batch of one process: its size and how it is trained."""

    tokens: int
    head_rows: int
    checkpointing: ActivationCheckpointing = "none"
    weights: Literal["float32", "bfloat16"] = "float32"
    """"float32" master weights that autocast casts, or "bfloat16" blocks (gathered by FSDP, or a frozen base)."""
    precision: Literal["bfloat16", "float32"] = "bfloat16"
    adapter_rank: int = 0
    """Rank of LoRA on all linear layers of a frozen base; 0 trains everything."""
    device: Literal["cpu", "cuda"] = "cuda"
    document_tokens: int | None = None
    distilled: bool = False


@dataclass(frozen=True)
class _Peaks:
    """Peak bytes in the phases that the module's docstring lists, and bytes of the gradients of weights."""

    forward: int
    head: int
    last: int
    first: int
    first_with_gradients: int
    block_gradients: int
    outer_gradients: int


@dataclass(frozen=True)
class MicroBatchMemory(_Peaks):
    """Bytes of a micro-batch besides weights, gradients and optimizer, for any number of blocks."""

    layers: int
    saved: int

    def peak(self, layers: int, accumulating: bool) -> int:
        """Peak in bytes, with the unsharded gradients of weights that exist at that moment. accumulating: gradients of an
        earlier micro-batch exist from the start."""
        more = layers - self.layers
        gradients = self.outer_gradients + layers * self.block_gradients
        before = max(self.forward, self.head, self.last) + more * self.saved
        if accumulating:
            return gradients + max(before, self.first)
        return max(before, self.first_with_gradients + more * self.block_gradients, gradients)

    def beyond_gradients(self, layers: int) -> int:
        """Peak in bytes without gradients of weights."""
        return max(max(self.forward, self.head, self.last) + (layers - self.layers) * self.saved, self.first)


@dataclass(frozen=True)
class _Run(_Peaks):
    after_blocks: int


def trace_micro_batch(config: PreTrainedConfig, traced: TraceSettings) -> MicroBatchMemory:
    """Traces models with two and with three blocks of `config`'s shape; no weight is created, nothing is computed."""
    _warm_attention(config, traced)
    two, three = (_run(_with_layers(config, layers), traced) for layers in (2, 3))
    peaks = {field.name: getattr(three, field.name) for field in fields(_Peaks)}
    return MicroBatchMemory(layers=3, saved=three.after_blocks - two.after_blocks, **peaks)


def _run(config: PreTrainedConfig, traced: TraceSettings) -> _Run:
    with torch_internals.FakeTensorMode(allow_non_fake_inputs=True), torch_internals.standing_for(traced.device):
        model = fake_model(config, traced)
        with torch_internals.unset_fake_temporarily():  # use_memory_efficient_layers computes its trial
            use_memory_efficient_layers(model)
        checkpoint_activations(model, traced.checkpointing)
        live = LiveBytes()
        handed = _HandedOver(model, live)
        inputs = {
            "input_ids": torch.zeros(1, traced.tokens, dtype=torch.int64),
            "position_ids": torch.zeros(1, traced.tokens, dtype=torch.int64),
            "use_cache": False,
            "document_lengths": _documents(traced),
        }
        labels, weights = torch.zeros(traced.head_rows, dtype=torch.int64), torch.ones(traced.head_rows)
        with live:
            half = traced.precision == "bfloat16"
            with torch.autocast("cpu", torch.bfloat16, enabled=half):
                hidden = model.base_model(**inputs).last_hidden_state[0]
                after_blocks, forward = live.now, live.peak
                live.peak = live.now
                read, head = hidden[torch.arange(traced.head_rows)], head_of(model)
                rows = cross_entropy_rows(labels, weights, hits=torch.zeros_like(weights))
                if traced.distilled:  # the teacher's head beside the student's
                    rows = distillation_rows(read.detach(), head, labels, weights, Divergence(), torch.zeros_like(weights))
                loss, _ = chunked_head(read, head, rows)
            del hidden, read
            at_head = live.peak
            live.peak = live.now
            loss.backward()
            handed.finish()
        return _Run(
            forward,
            at_head,
            handed.last,
            handed.first,
            handed.first_with_gradients,
            handed.block_bytes,
            handed.outer_bytes,
            after_blocks,
        )


def head_of(model: PreTrainedModel) -> Head:
    """The head of a model. Raises ModelError if it is not a linear layer."""
    head = Head.of(model)
    if head is None:
        raise ModelError(f"the head of a {model.config.model_type} is not a linear layer, so its training cannot be planned")
    return head


def fake_model(config: PreTrainedConfig, traced: TraceSettings) -> PreTrainedModel:
    """The model for training, to be created inside FakeTensorMode."""
    config = copy.deepcopy(config)
    config._attn_implementation = "packed"
    dtype = torch.bfloat16 if traced.adapter_rank and traced.weights == "bfloat16" else torch.float32
    model = AutoModelForCausalLM.from_config(config, dtype=dtype).train()
    if traced.weights == "bfloat16":
        for module in (module for block in blocks_of(model) for module in block.modules()):
            for name, parameter in list(module.named_parameters(recurse=False)):
                setattr(module, name, nn.Parameter(parameter.detach().to(torch.bfloat16)))
    if traced.adapter_rank:
        add_adapters(model, LoraSettings(rank=traced.adapter_rank))
    return model


class _HandedOver:
    """Removes gradients of weights from the count as they appear, and records the peaks of the backward pass by phase."""

    def __init__(self, model: nn.Module, live: LiveBytes):
        blocks = blocks_of(model)
        self._live, self._taken = live, 0
        self._block_of = {parameter: number for number, block in enumerate(blocks) for parameter in block.parameters()}
        self._missing = [sum(p.requires_grad for p in block.parameters()) for block in blocks]
        self.last = self.first = self.first_with_gradients = self.block_bytes = self.outer_bytes = 0
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(self._take)

    def _take(self, parameter: nn.Parameter) -> None:
        size = self._live.hand_over(parameter.grad.untyped_storage())
        self._taken += size
        number = self._block_of.get(parameter)
        if number is None:
            self.outer_bytes += size
            return
        self._missing[number] -= 1
        if number == 0:
            self.block_bytes += size
        if self._missing[number] == 0:
            self._block_is_done(number)

    def _block_is_done(self, number: int) -> None:
        if number == len(self._missing) - 1:
            self.last = self._live.peak
        if number == 1:
            self._live.peak = self._live.now
            self._before_first = self._taken

    def finish(self) -> None:
        self.first = self._live.peak
        self.first_with_gradients = self._live.peak + self._before_first


def _with_layers(config: PreTrainedConfig, layers: int) -> PreTrainedConfig:
    changed = copy.deepcopy(config)
    if getattr(changed, "layer_types", None):
        kinds = list(changed.layer_types)
        changed.layer_types = (kinds[-1:] * (layers - len(kinds)) + kinds)[-layers:]
    changed.num_hidden_layers = layers
    return changed


def _documents(traced: TraceSettings) -> list[int]:
    length = min(traced.document_tokens or traced.tokens, traced.tokens)
    whole, rest = divmod(traced.tokens, length)
    return [length] * whole + ([rest] if rest else [])


def _warm_attention(config: PreTrainedConfig, traced: TraceSettings) -> None:
    """Fills attention's caches of index tensors with real tensors, before a call on fake tensors would fill them."""
    if traced.device != "cpu":
        Boundaries.of(_documents(traced), torch.device("cpu"))
        return
    heads, kv_heads = config.num_attention_heads, getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    query, key = (torch.zeros(1, number, traced.tokens, 2) for number in (heads, kv_heads))
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=traced.precision == "bfloat16"):
        packed_attention(nn.Module(), query, key, key, document_lengths=_documents(traced))


class LiveBytes(torch_internals.TorchDispatchMode):
    """Context manager that tracks the storage of every tensor that an operation returns."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.peak = 0
        self._known: dict[int, int] = {}

    def __torch_dispatch__(self, operation: Any, types: Any, arguments: Any = (), named: Any = None) -> Any:
        for tensor in torch_internals.tree_leaves((arguments, named)):
            if isinstance(tensor, torch.Tensor):
                self._follow(tensor.untyped_storage(), was_there_before=True)
        result = operation(*arguments, **(named or {}))
        for tensor in torch_internals.tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                self._follow(tensor.untyped_storage())
        return result

    def hand_over(self, storage: torch.UntypedStorage) -> int:
        """Stops counting a storage; returns its bytes, or 0 if it was not counted."""
        size = self._known.get(id(storage), 0)
        self._known[id(storage)] = 0
        self.now -= size
        return size

    def _follow(self, storage: torch.UntypedStorage, was_there_before: bool = False) -> None:
        key = id(storage)
        if key in self._known:
            return
        size = 0 if was_there_before else storage.nbytes()
        self._known[key] = size
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._gone, key)

    def _gone(self, key: int) -> None:
        self.now -= self._known.pop(key, 0)
