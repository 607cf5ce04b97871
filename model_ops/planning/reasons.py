"""Explains a chosen setup, one short sentence for each choice. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from model_ops.devices import Device
from model_ops.planning.memory_plan import GIB, MemoryOf, Needs, Setup, memory_of
from model_ops.planning.speed import is_thin, is_too_small
from model_ops.wording import counted


def reasons_for(needs: Needs, setup: Setup, device: Device, memory: MemoryOf, count: int) -> Iterator[str]:
    """One sentence for each choice. count: number of available devices."""
    mesh, room = setup.mesh, device.memory_gib * GIB
    fits = f"{memory.total / GIB:.1f} of {device.memory_gib:.1f} GiB"
    if needs.fixed is not None:
        yield f"as the recipe says: {mesh}, {setup.micro_batch_tokens:,} tokens at once take {fits}"
        return
    if mesh.processes < count:
        yield _why_fewer(needs, setup, device, count)
    if mesh.processes == 1:
        yield f"mesh: one process; the model and its optimizer fit ({fits})"
    if mesh.dp_replicate > 1 and mesh.shards == 1 and mesh.tp == 1:
        yield f"dp_replicate {mesh.dp_replicate}: a whole copy fits on each device, so only gradients travel"
    elif mesh.dp_replicate > 1 and mesh.shards == 1:
        yield f"dp_replicate {mesh.dp_replicate}: copies of the model, each on {mesh.tp} devices"
    elif mesh.dp_replicate > 1:
        yield f"dp_replicate {mesh.dp_replicate}: copies of the model; weights are gathered only within each copy"
    if mesh.shards > 1:
        share = memory.weights + memory.gradients + memory.optimizer
        over = ", too much for one device" if share * mesh.shards > room else ""
        axes = " and ".join(f"{name} {mesh.axes()[name]}" for name in ("dp_shard", "cp", "ep") if name in mesh.axes())
        yield (f"{axes}: weights, gradients and optimizer of {share * mesh.shards / GIB:,.0f} GiB{over}, "
               f"{share / GIB:.1f} on each")
    if mesh.cp > 1:
        few = needs.tokens_per_step < needs.max_length * mesh.data_ranks * mesh.cp
        why = (f"a step of {needs.tokens_per_step:,} tokens has too few rows to give every device its own" if few
               else "whole rows would keep too much on one device")
        yield f"cp {mesh.cp}: rows of {needs.max_length:,} tokens are cut in {mesh.cp}; {why}"
    if mesh.tp > 1:
        width = needs.hidden // mesh.tp
        few = needs.tokens_per_step < needs.max_length * mesh.data_ranks * mesh.cp * mesh.tp
        why = (f"nothing else fits, though {width:,} of the hidden size on each is narrow" if is_thin(needs, setup) else
               f"a step of {needs.tokens_per_step:,} tokens has too few rows to give every device its own, and {width:,} of "
               "the hidden size on each is wide enough" if few else
               f"nothing without it fits or is as fast, and {width:,} of the hidden size on each is wide enough")
        yield f"tp {mesh.tp}: {why}"
    if mesh.ep > 1:
        yield f"ep {mesh.ep}: each device holds {needs.num_experts // mesh.ep} of {needs.num_experts} experts"
    rows = setup.micro_batch_tokens // needs.max_length
    said = "one row of max_length" if rows <= 1 else f"{rows} rows of max_length; larger products are faster"
    yield f"micro-batch {setup.micro_batch_tokens:,} tokens: {said}"
    lighter = {"none": None, "selective": "none", "full": "selective"}[setup.checkpointing]
    if lighter is None:
        yield f"activation checkpointing none: all that blocks keep ({memory.kept / GIB:.1f} GiB) fits"
    else:
        without = memory_of(needs, replace(setup, checkpointing=lighter, offload=False), device).total
        cost = (f"one more forward pass, {needs.forward_share:z.0%} of the work" if setup.checkpointing == "full"
                else "cheap operations twice")
        because = (f"with {lighter} it takes {without / GIB:,.1f} GiB" if without > room
                   else f"with {lighter} only smaller micro-batches would fit")
        yield f"activation checkpointing {setup.checkpointing}: {because}; costs {cost}"
    if setup.offload:
        without = memory_of(needs, replace(setup, offload=False), device).total
        yield f"offload: without it {without / GIB:,.1f} GiB; what blocks keep waits in host memory meanwhile"


def _why_fewer(needs: Needs, setup: Setup, device: Device, count: int) -> str:
    """The reason why some devices stay idle."""
    rows = -(-needs.tokens_per_step // needs.max_length)
    why = ("this model is so small that a device takes longer to start its operations than to compute them"
           if is_too_small(needs, setup, device) else f"a step has only {counted(rows, 'row')} of {needs.max_length:,} tokens")
    return (f"{setup.mesh.processes} of {count} devices: {why}, so more devices would not make a step of "
            f"{needs.tokens_per_step:,} tokens a fifth faster; a larger tokens_per_step would use them")
