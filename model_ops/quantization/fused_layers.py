"""Which layers servers join into one: queries, keys and values; the gate and up projections of an MLP or an expert.

    fused_layers(["layers.0.mlp.gate_proj", "layers.0.mlp.up_proj"])      # [both], in the order in which they are joined

vLLM (`packed_modules_mapping` of its models) and SGLang multiply such layers as one matrix, with one global scale.
"""

from __future__ import annotations

from collections.abc import Iterable

JOINED = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"), ("w1", "w3"), ("q_a_proj", "kv_a_proj_with_mqa"))
"""Last parts of the names of layers that are joined, in this order."""


def fused_layers(names: Iterable[str]) -> list[list[str]]:
    """The layers in groups: those that are joined together, every other alone."""
    known = dict.fromkeys(names)
    groups: dict[tuple[str, int], list[str]] = {}
    for name in known:
        module, _, last = name.rpartition(".")
        number = next((number for number, joined in enumerate(JOINED) if last in joined), None)
        groups.setdefault((name, -1) if number is None else (module, number), []).append(name)
    return [sorted(group, key=lambda name: JOINED[number].index(name.rpartition(".")[2])) if number >= 0 else group
            for (_, number), group in groups.items()]
