"""Tensor, sequence and expert parallelism: a module's own forward runs on a shallow copy with this process's part of its
parameters. Between blocks the residual stream is sharded along the tokens (a multiple of tp), and gathered before attention,
feed-forward and head. The gradient of a replicated parameter is a partial sum on each process (Partial), which FSDP adds."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

from model_ops.jobs import ModelError
from model_ops.parallel.collectives import exchange_rows, gather_tokens, scatter_tokens
from model_ops.parallel.sharding import Sharding
from model_ops.tensors import torch_internals


@dataclass(frozen=True, eq=False)
class ExpertShare:
    """The experts of this process: `count` experts, the part tp_rank of the block of ep_rank."""

    group: dist.ProcessGroup | None
    ep_size: int
    tp_rank: int
    tp_size: int
    count: int


Experts = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(tokens, expert of each token, weight of each token) -> outputs of the local experts."""


def dispatch(
    experts: Experts,
    share: ExpertShare,
    hidden: Float[Tensor, "tokens width"],
    chosen: Int[Tensor, "tokens top_k"],
    weights: Float[Tensor, "tokens top_k"],
) -> Float[Tensor, "tokens width"]:
    """The weighted sum over each token's experts. With tp, only over the experts of this tp process."""
    block = share.count * share.tp_size  # experts of one ep process, over its whole tp group
    within = chosen % block
    mine = within // share.count == share.tp_rank
    token, slot = mine.nonzero(as_tuple=True)
    owner, local = chosen[token, slot] // block, within[token, slot] % share.count
    order = torch.argsort(owner * share.count + local, stable=True)
    token, slot, local = token[order], slot[order], local[order]
    key = owner[order] * share.count + local
    numbers = torch.arange(share.ep_size * share.count, device=key.device)
    ends = torch.searchsorted(key, numbers, right=True)  # bincount would wait for a device
    sent = ends.diff(prepend=ends.new_zeros(1)).view(share.ep_size, share.count)
    if share.group is None:
        outputs = _run(experts, hidden[token], local)
    else:
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent, group=share.group)
        leaving, arriving = torch.stack((sent.sum(1), received.sum(1))).tolist()
        arrived = exchange_rows(hidden[token], leaving, arriving, share.group)
        which = torch.arange(share.count, device=hidden.device).repeat(share.ep_size)
        outputs = exchange_rows(
            _run(experts, arrived, which.repeat_interleave(received.flatten())), arriving, leaving, share.group
        )
    outputs = outputs * weights[token, slot, None]
    return torch.zeros_like(hidden).index_add_(0, token, outputs.to(hidden.dtype))


def _run(experts: Experts, tokens: Float[Tensor, "rows width"], which: Int[Tensor, " rows"]) -> Tensor:
    if len(tokens) == 0:
        # stays in the autograd graph, so that the backward pass of every process runs the same collectives
        return experts(tokens.new_zeros(1, tokens.shape[1]), which.new_zeros(1, 1), tokens.new_zeros(1, 1))[:0] + tokens
    return experts(tokens, which[:, None], tokens.new_ones(len(tokens), 1))


Plan = Mapping[str, Sharding]


@dataclass(frozen=True, eq=False)
class TensorMesh:
    """The meshes of this process for tensor parallelism (tp) and expert parallelism (ep)."""

    tp: DeviceMesh | None
    ep: DeviceMesh | None
    both: DeviceMesh | None

    @property
    def tp_size(self) -> int:
        return 1 if self.tp is None else self.tp.size()

    @property
    def tp_rank(self) -> int:
        return 0 if self.tp is None else self.tp.get_local_rank()

    @property
    def group(self) -> dist.ProcessGroup:
        if self.tp is None:
            raise ValueError("this mesh has no tensor parallelism, so it has no group of it")
        return self.tp.get_group()


Owners = Mapping[nn.Parameter, list[tuple[nn.Module, str]]]
"""Parameter -> (module, name) of every module that has it; a tied parameter has several."""


def cut_parameters(owners: Owners, sharding_of: Callable[[nn.Parameter], Sharding], mesh: TensorMesh) -> None:
    """Replaces parameters by DTensors over tp and ep; under tp, replicated parameters too."""
    for parameter, places in owners.items():
        sharding = sharding_of(parameter)
        dims = [Shard(sharding.placements[axis]) if axis in sharding.placements else Replicate() for axis in ("ep", "tp")]
        if "ep" in sharding.placements:
            over, placements = (mesh.both, dims) if mesh.tp is not None else (mesh.ep, dims[:1])
        elif mesh.tp is not None:
            over, placements = mesh.tp, dims[1:]
        else:
            continue
        # every process has the same values: each takes its own part without a broadcast
        part = distribute_tensor(parameter.detach(), over, placements, src_data_rank=None)
        cut = nn.Parameter(_compact(part), requires_grad=parameter.requires_grad)
        for module, name in places:
            setattr(module, name, cut)


def compute_locally(model: nn.Module, plan: Plan, mesh: TensorMesh) -> None:
    """Replaces the forwards of modules with sharded parameters. Raises ModelError for an unsupported module."""
    base, head = model.base_model, model.get_output_embeddings()
    config = model.config
    for prefix, module in model.named_modules():
        own = {name: plan.get(f"{prefix}.{name}") for name, _ in module.named_parameters(recurse=False, remove_duplicate=False)}
        if prefix.endswith(".experts") and any(s is not None and {"ep", "tp"} & s.placements.keys() for s in own.values()):
            _dispatch_experts(module, next(s for s in own.values() if s is not None), mesh)
        elif mesh.tp is None or not own:
            continue
        elif module is base.get_input_embeddings():
            _cut_embedding(module, mesh)
        elif module is head:
            _cut_head(module, mesh)
        elif isinstance(module, nn.Linear) and (weight := own.get("weight")) is not None and _cut_dim(weight) == 1:
            _sum_outputs(module, own, mesh)
        else:
            _run_locally(module, own, mesh, config)
    if mesh.tp is None:
        return
    for prefix, module in model.named_modules():
        parent, _, last = prefix.rpartition(".")
        if last in ("self_attn", "mlp") and parent.rpartition(".")[2].isdigit():
            module.register_forward_pre_hook(_enter(mesh), with_kwargs=True)
            writer = plan.get(f"{prefix}.{'o_proj' if last == 'self_attn' else 'down_proj'}.weight")
            if writer is None or _cut_dim(writer) is None:
                summed = any(
                    name.startswith(f"{prefix}.experts.") and "tp" in sharding.placements for name, sharding in plan.items()
                )
                module.register_forward_hook(_leave(mesh, summed))
    head_cut = head is not None and isinstance(head.weight, DTensor) and head.weight.placements[-1].is_shard()
    base.norm.register_forward_hook(lambda _module, _inputs, output: gather_tokens(output, mesh.group, partial=head_cut))


def local(parameter: Tensor) -> Tensor:
    """This process's part of a parameter. Its gradient is this process's part of the whole gradient."""
    if not isinstance(parameter, DTensor):
        return parameter
    parts = [p if isinstance(p, Shard) else Partial() for p in parameter.placements]
    return parameter.to_local(grad_placements=parts)


def local_view(module: nn.Module, parameters: Mapping[str, Tensor | None]) -> nn.Module:
    """A shallow copy of the module whose own parameters are other tensors; the forward of its class can be called on it."""
    view = torch_internals.shallow_copy(module, parameters=parameters)
    if isinstance(module, nn.Linear) and (weight := parameters["weight"]) is not None:
        view.out_features, view.in_features = weight.shape
    return view


def _local_parts(module: nn.Module) -> dict[str, Tensor]:
    return {name: local(parameter) for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False)}


def key_heads(config: Any, mesh: TensorMesh) -> list[int]:
    """Key heads that this process's query heads read, if key heads are replicated; one per query head if they do not divide
    evenly."""
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    share = heads // mesh.tp_size
    read = [(mesh.tp_rank * share + head) // (heads // kv_heads) for head in range(share)]
    distinct = sorted(set(read))
    even = all(read.count(head) * len(distinct) == share for head in distinct)
    return distinct if even else read


def _cut_dim(sharding: Sharding) -> int | None:
    return sharding.placements.get("tp", sharding.narrowed)


def _compact(part: DTensor) -> DTensor:
    """A copy of a part, because a view would keep the whole parameter in memory."""
    return DTensor.from_local(
        part.to_local().clone(memory_format=torch.contiguous_format),
        part.device_mesh,
        part.placements,
        run_check=False,
        shape=part.shape,
        stride=part.stride(),
    )


def _local_parameters(
    module: nn.Module, own: Mapping[str, Sharding | None], mesh: TensorMesh, config: Any = None
) -> dict[str, Tensor]:
    parts = _local_parts(module)
    for name, sharding in own.items():
        if sharding is None or sharding.narrowed is None:
            continue
        whole = parts[name]
        if sharding.axes[sharding.narrowed] == "kv_heads":
            wanted = torch.tensor(key_heads(config, mesh), device=whole.device)
            parts[name] = whole.unflatten(0, (config.num_key_value_heads, -1))[wanted].flatten(0, 1)
        else:
            parts[name] = whole.chunk(mesh.tp_size, sharding.narrowed)[mesh.tp_rank]
    return parts


def _run_locally(module: nn.Module, own: Mapping[str, Sharding | None], mesh: TensorMesh, config: Any) -> None:
    original = type(module).forward
    module.forward = lambda *inputs, **options: original(
        local_view(module, _local_parameters(module, own, mesh, config)), *inputs, **options
    )


def _sum_outputs(linear: nn.Linear, own: Mapping[str, Sharding | None], mesh: TensorMesh) -> None:
    """Row-parallel linear layer: partial outputs are summed with a reduce-scatter along the tokens; the bias is added once."""
    original = type(linear).forward

    def forward(hidden: Tensor) -> Tensor:
        parts = _local_parameters(linear, own, mesh)
        bias = parts.get("bias")
        summed = scatter_tokens(original(local_view(linear, {**parts, "bias": None}), hidden), mesh.group)
        return summed if bias is None else summed + bias

    linear.forward = forward


def _cut_embedding(embedding: nn.Embedding, mesh: TensorMesh) -> None:
    original = type(embedding).forward
    cut = embedding.weight.placements[-1].is_shard()

    def forward(ids: Tensor) -> Tensor:
        if ids.shape[1] % mesh.tp_size:
            raise ValueError(f"a row of {ids.shape[1]} tokens is not a multiple of tp {mesh.tp_size}; pad it")
        weight = local(embedding.weight)
        view = local_view(embedding, {"weight": weight})
        if not cut:
            return original(view, ids.chunk(mesh.tp_size, 1)[mesh.tp_rank])
        start = mesh.tp_rank * len(weight)
        shifted = ids - start
        elsewhere = (shifted < 0) | (shifted >= len(weight))
        padding = embedding.padding_idx
        held = padding is not None and start <= padding < start + len(weight)
        view.padding_idx = padding - start if held else None
        rows = original(view, shifted.masked_fill(elsewhere, 0)).masked_fill(elsewhere[..., None], 0)
        return scatter_tokens(rows, mesh.group)

    embedding.forward = forward


def _cut_head(head: nn.Linear, mesh: TensorMesh) -> None:
    """Logits of the whole vocabulary for calls of the module; losses use the local part instead."""
    original = type(head).forward
    cut = head.weight.placements[-1].is_shard()

    def forward(hidden: Tensor) -> Tensor:
        logits = original(local_view(head, _local_parts(head)), hidden)
        if not cut:
            return logits
        if torch.is_grad_enabled() and logits.requires_grad:
            raise ModelError("logits of this head cannot be differentiated under tensor parallelism; set tp to 1")
        parts = [torch.empty_like(logits) for _ in range(mesh.tp_size)]
        dist.all_gather(parts, logits.contiguous(), group=mesh.group)
        return torch.cat(parts, -1)

    head.forward = forward


def _dispatch_experts(module: nn.Module, sharding: Sharding, mesh: TensorMesh) -> None:
    original = type(module).forward
    ep, cut_tp = mesh.ep if "ep" in sharding.placements else None, "tp" in sharding.placements
    ep_size, tp_size = 1 if ep is None else ep.size(), mesh.tp_size if cut_tp else 1
    share = ExpertShare(
        None if ep is None else ep.get_group(),
        ep_size,
        mesh.tp_rank if cut_tp else 0,
        tp_size,
        sharding.shape[0] // (ep_size * tp_size),
    )

    def forward(hidden: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        view = local_view(module, _local_parts(module))
        view.num_experts = share.count
        return dispatch(lambda *given: original(view, *given), share, hidden, chosen, weights)

    module.forward = forward


def _enter(mesh: TensorMesh) -> Callable:
    def enter(_module: nn.Module, inputs: tuple, options: dict) -> tuple[tuple, dict]:
        if inputs:
            return (gather_tokens(inputs[0], mesh.group), *inputs[1:]), options
        return inputs, {**options, "hidden_states": gather_tokens(options["hidden_states"], mesh.group)}

    return enter


def _leave(mesh: TensorMesh, summed: bool) -> Callable:
    def leave(_module: nn.Module, _inputs: tuple, output: Any) -> Any:
        hidden = output[0] if isinstance(output, tuple) else output
        cut = scatter_tokens(hidden, mesh.group, partial=summed)
        return (cut, *output[1:]) if isinstance(output, tuple) else cut

    return leave
