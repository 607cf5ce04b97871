"""Sharding of every parameter by its name: logical axes to mesh axes. No torch. Rules are ordered, as in MaxText's
logical_axis_rules: the first that fits a dimension applies. A mesh axis is used once per parameter, and only if it divides a
dimension into whole units (heads); otherwise the dimension is replicated, and `notes` says so. `fsdp` is dp_shard, cp and ep
flattened (dp_shard and cp under `ep`): it shards the first dimension that no other rule took. An unknown name has no logical
axes, so only fsdp shards it."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from model_ops.jobs import ModelError
from model_ops.parallel.mesh_settings import MeshSettings

Axes = tuple[str | None, ...]

PATTERNS: tuple[tuple[str, Axes], ...] = (
    (r"embed_tokens\.weight", ("vocab", "embed")), (r"lm_head\.weight", ("vocab", "embed")), (r"lm_head\.bias", ("vocab",)),
    (r"score\.weight", ("score", "embed")), (r"self_attn\.q_proj\.weight", ("heads", "embed")),
    (r"self_attn\.q_proj\.bias", ("heads",)), (r"self_attn\.[kv]_proj\.weight", ("kv_heads", "embed")),
    (r"self_attn\.[kv]_proj\.bias", ("kv_heads",)), (r"self_attn\.o_proj\.weight", ("embed", "heads")),
    (r"self_attn\.sinks", ("heads",)), (r"mlp\.experts\.gate_up_proj", ("expert", "mlp", "embed")),
    (r"mlp\.experts\.down_proj", ("expert", "embed", "mlp")), (r"mlp\.experts\.gate_up_proj_bias", ("expert", "mlp")),
    (r"mlp\.experts\.down_proj_bias", ("expert", "embed")), (r"mlp\.(gate|router)\.weight", ("router", "embed")),
    (r"mlp\.router\.bias", ("router",)), (r"mlp\.(gate|up)_proj\.weight", ("mlp", "embed")),
    (r"mlp\.(gate|up)_proj\.bias", ("mlp",)), (r"mlp\.down_proj\.weight", ("embed", "mlp")),
    (r"(o|down)_proj\.bias", ("embed",)), (r"\w*norm\.weight", ("norm",)),
)  # fmt: skip
"""(end of a parameter's name, logical axis of each dimension); the first match counts."""

OF_MODEL_TYPE: Mapping[str, tuple[tuple[str, Axes], ...]] = {
    "gpt_oss": (  # its expert matrices are transposed: inputs first
        (r"mlp\.experts\.gate_up_proj", ("expert", "embed", "mlp")),
        (r"mlp\.experts\.down_proj", ("expert", "mlp", "embed")),
    )
}
"""Patterns by architecture, tried before PATTERNS."""


def axes_of(name: str, dimensions: int, model_type: str) -> Axes:
    """The logical axis of each dimension of a parameter; None for all if its name is unknown."""
    base, _, adapter = name.rpartition(".lora_")
    if base and dimensions == 2:
        outer, inner = axes_of(f"{base}.weight", 2, model_type)
        return (None, inner) if adapter.startswith("A") else (outer, None)
    for pattern, axes in (*OF_MODEL_TYPE.get(model_type, ()), *PATTERNS):
        if re.search(rf"(^|\.|_){pattern}$", name) and len(axes) == dimensions:
            return axes
    return (None,) * dimensions


def unit_of(axis: str | None, size: int, config: Any) -> int:
    """Number of consecutive values of a dimension that must stay together: head_dim for heads, else 1."""
    heads = {"heads": config.num_attention_heads, "kv_heads": config.num_key_value_heads}.get(axis or "")
    return size // heads if heads else 1


RULES = (
    ("expert", "ep"), ("expert", "tp"), ("vocab", "tp"), ("heads", "tp"), ("kv_heads", "tp"), ("mlp", "tp"), ("any", "fsdp"),
)  # fmt: skip
"""(logical axis, mesh axis) by priority. `any` is any dimension, from first to last."""


@dataclass(frozen=True)
class Sharding:
    """Sharding of one parameter."""

    shape: tuple[int, ...]
    axes: Axes
    placements: dict[str, int]
    """Mesh axis -> sharded dimension; other axes replicate."""
    local_shape: tuple[int, ...]
    """Shape on the first process, which has the largest part if fsdp does not divide evenly."""
    narrowed: int | None = None
    """Dimension that every process of a tp group holds whole, although it uses only its share: connected layers are sharded."""
    notes: tuple[str, ...] = field(default=())

    @property
    def elements(self) -> int:
        """Number of values on the first process."""
        return math.prod(self.local_shape)


def plan_sharding(shapes: Mapping[str, Sequence[int]], config: Any, mesh: MeshSettings) -> dict[str, Sharding]:
    """The sharding of every parameter. config: the model's (head sizes, model_type). Raises ModelError if the model cannot use
    one of the mesh's axes."""
    sizes = mesh.sizes()
    plan = {name: _one(name, tuple(shape), config, sizes) for name, shape in shapes.items()}
    used = {axis for sharding in plan.values() for axis in sharding.placements}
    kind = getattr(config, "model_type", "model")
    if sizes["ep"] > 1 and "ep" not in used:
        experts = max((s.shape[0] for s in plan.values() if s.axes and s.axes[0] == "expert"), default=0)
        why = f"its {experts} experts are not a multiple of it" if experts else "it has no experts"
        raise ModelError(f"mesh ep {sizes['ep']} cannot be used with this {kind} model: {why}; set ep to 1 or a divisor")
    if sizes["tp"] > 1 and "tp" not in used:
        raise ModelError(
            f"mesh tp {sizes['tp']} divides no dimension of this {kind} model; set tp to a divisor of its attention heads"
        )
    if sizes["tp"] > 1:
        _refuse_unknown(plan, config, kind)
    return plan


def _refuse_unknown(plan: Mapping[str, Sharding], config: Any, kind: str) -> None:
    """Raises ModelError for a parameter of unknown logical axes under tp, because tp might then compute another function."""
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    for name, sharding in plan.items():
        over_heads = sharding.axes == ("norm",) and ".self_attn." in name and sharding.shape[0] > head_dim
        if over_heads or not any(sharding.axes):
            raise ModelError(
                f"mesh tp cannot be used with this {kind} model: the logical axes of {name} are unknown; set tp "
                "to 1 and use dp_shard"
            )


def _one(name: str, shape: tuple[int, ...], config: Any, sizes: Mapping[str, int]) -> Sharding:
    axes = axes_of(name, len(shape), getattr(config, "model_type", ""))
    placements: dict[str, int] = {}
    notes: list[str] = []
    narrowed: int | None = None
    local = list(shape)
    for logical, axis in RULES:
        if axis == "fsdp" or logical not in axes or sizes[axis] == 1 or axis in placements:
            continue
        size, dim, unit = sizes[axis], axes.index(logical), unit_of(logical, shape[axes.index(logical)], config)
        if logical == "mlp" and "expert" in axes:  # gate and up are fused, and only whole experts are dispatched
            continue
        heads_cut = logical != "kv_heads" or config.num_attention_heads % size == 0
        if local[dim] % (size * unit) or not heads_cut:
            notes.append(f"{axis} {size} does not divide {logical} {local[dim] // unit}: replicated")
            narrowed = dim if logical == "kv_heads" and heads_cut else None
            continue
        after = [n // size if d == dim else n for d, n in enumerate(local)]
        if _fsdp_dim(after, {*placements.values(), dim}, _fsdp_size(sizes, {*placements, axis})) is None:
            notes.append(f"{axis} {size} leaves {logical} too small for fsdp: replicated")
            narrowed = dim if logical in ("heads", "kv_heads", "mlp") else None
            continue
        placements[axis], local = dim, after
    fsdp = _fsdp_size(sizes, placements)
    if fsdp > 1 and shape:
        divided = _fsdp_dim(local, set(placements.values()), fsdp)
        dim = divided or 0
        if divided is None:
            notes.append(f"fsdp {fsdp} divides no dimension: padded")
        placements["fsdp"] = dim
        local[dim] = -(-local[dim] // fsdp)
    return Sharding(shape, axes, placements, tuple(local), narrowed, tuple(notes))


def _fsdp_size(sizes: Mapping[str, int], used: Any) -> int:
    return sizes["dp_shard"] * sizes["cp"] * (1 if "ep" in used else sizes["ep"])


def _fsdp_dim(local: Sequence[int], taken: set[int], size: int) -> int | None:
    """The first dimension that `size` divides, free ones first; None if there is none."""
    order = [dim for dim in range(len(local)) if dim not in taken] + sorted(taken)
    return next((dim for dim in order if local[dim] % size == 0), None)
