"""Experts of a mixture: grouped products in autocast's precision, for every width. transformers' own run in the dtype of the
stored weights, and need rows with strides of 16 bytes; here other widths are padded on CUDA, and multiplied expert by expert on
a CPU."""

import torch
from jaxtyping import Float, Int, Int32
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS, grouped_mm_experts_forward

from model_ops.adapters import PREFIX

NAME = "grouped_in_autocast"
STRIDE_BYTES = 16
"""Alignment of rows that torch's grouped product requires."""


def use_grouped_experts(model: PreTrainedModel) -> None:
    """Sets how the model computes its experts; a dense model stays as it is."""
    if model._can_set_experts_implementation():
        model.set_experts_implementation(NAME)


def experts_forward(
    self: nn.Module,
    hidden_states: Float[Tensor, "tokens hidden"],
    top_k_index: Int[Tensor, "tokens top_k"],
    top_k_weights: Float[Tensor, "tokens top_k"],
) -> Float[Tensor, "tokens hidden"]:
    """The weighted sum of each token's experts, with the signature of transformers' experts interface."""
    if self._is_expert_parallel:
        return grouped_mm_experts_forward(self, hidden_states, top_k_index, top_k_weights)
    kind = hidden_states.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else self.down_proj.dtype
    tokens, top_k = top_k_index.shape
    expert, order = top_k_index.reshape(-1).sort(stable=True)
    # bincount would wait for a device
    ends = torch.searchsorted(expert, torch.arange(self.num_experts, device=expert.device), right=True, out_int32=True)
    first = "gate_up_proj" if self.has_gate else "up_proj"
    with torch.autocast(kind, enabled=False):
        outputs = _layer(self, first, hidden_states.to(dtype)[order // top_k], expert, ends)
        outputs = self._apply_gate(outputs) if self.has_gate else self.act_fn(outputs)
        outputs = _layer(self, "down_proj", outputs, expert, ends)
        if self.has_post_expert_norm:
            outputs = self.post_expert_norm(outputs)
        outputs = outputs * top_k_weights.reshape(-1)[order, None].to(outputs.dtype)
        # back in the order of tokens, and summed without index_add, which is not deterministic on accelerators
        back = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=order.device))
        return outputs[back].view(tokens, top_k, -1).sum(1).to(hidden_states.dtype)


def _layer(
    experts: nn.Module, name: str, rows: Float[Tensor, "rows in"], expert: Int[Tensor, " rows"], ends: Int32[Tensor, " experts"]
) -> Float[Tensor, "rows out"]:
    """One layer of each row's expert. Rows are sorted by expert; ends: the row after each expert's last."""
    weight = getattr(experts, name).to(rows.dtype)
    outputs = grouped_product(rows, weight if experts.is_transposed else weight.transpose(1, 2), ends)
    adapter = getattr(experts, f"{PREFIX}{name}", None)
    if adapter is not None:
        down, up = (part.to(rows.dtype).transpose(1, 2) for part in (adapter.lora_A, adapter.lora_B))
        outputs = outputs + adapter.scaling * grouped_product(grouped_product(adapter.seen(rows), down, ends), up, ends)
    if experts.has_bias:
        outputs = outputs + getattr(experts, f"{name}_bias").to(rows.dtype)[expert]
    return outputs


def grouped_product(
    rows: Float[Tensor, "rows width"], weight: Float[Tensor, "experts width out"], ends: Int32[Tensor, " experts"]
) -> Float[Tensor, "rows out"]:
    """rows[i] @ weight[expert of i], for rows sorted by expert."""
    size = rows.element_size()
    if all(width * size % STRIDE_BYTES == 0 for width in weight.shape[1:]):
        return F.grouped_mm(rows, weight, offs=ends)
    if rows.is_cuda:
        return grouped_product_padded(rows, weight, ends)
    starts = [0, *ends.tolist()]
    return torch.cat([rows[start:end] @ matrix for start, end, matrix in zip(starts, starts[1:], weight, strict=False)])


def grouped_product_padded(
    rows: Float[Tensor, "rows width"], weight: Float[Tensor, "experts width out"], ends: Int32[Tensor, " experts"]
) -> Float[Tensor, "rows out"]:
    """`grouped_product` for any widths, with zeros up to the next width that torch's grouped product takes."""
    multiple = STRIDE_BYTES // rows.element_size()
    width, out = weight.shape[1:]
    more = -width % multiple
    return F.grouped_mm(F.pad(rows, (0, more)), F.pad(weight, (0, -out % multiple, 0, more)), offs=ends)[:, :out]


ALL_EXPERTS_FUNCTIONS.register(NAME, experts_forward)
