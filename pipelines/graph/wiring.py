"""Changes what an asset depends on, in the asset graph and in the execution plan.

    rewired(asset, lambda spec: [dg.AssetDep(...), ...])

Dagster's `map_asset_specs` changes an asset's declared dependencies, but not the steps that its step waits for: a new
dependency gets no input (1.13, `replace_specs_on_asset`), so steps would run before their inputs exist. Here both come from
one list; tests/pipelines/graph/test_step_order.py compares them for every choice of switches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import dagster as dg


def rewired(asset: dg.AssetsDefinition, reads: Callable[[dg.AssetSpec], Iterable[dg.AssetDep]]) -> dg.AssetsDefinition:
    """The asset with `reads(spec)` as the dependencies of each of its specs.

    Every dependency must be an ordering one (`deps=[...]`): values pass by manifest, never as arguments.
    """
    specs = [spec.replace_attributes(deps=list(reads(spec))) for spec in asset.specs]
    keys = sorted({dep.asset_key for spec in specs for dep in spec.deps})
    inputs = {f"read_{'__'.join(key.path)}".replace("-", "_"): key for key in keys}
    if len(inputs) != len(keys):
        raise ValueError(f"two of {', '.join(key.to_user_string() for key in keys)} have the same name as inputs")
    arguments = [name for name, given in asset.op.ins.items() if not given.dagster_type.is_nothing]
    if arguments:
        raise ValueError(f"{asset.op.name} takes {', '.join(arguments)} as arguments: only deps=[...] can be rewired")
    return dg.AssetsDefinition(
        keys_by_input_name=inputs,
        keys_by_output_name=asset.node_keys_by_output_name,
        node_def=asset.op.with_replaced_properties(
            name=asset.op.name, ins={name: dg.In(dg.Nothing) for name in inputs}
        ),
        specs=specs,
        can_subset=asset.can_subset,
        resource_defs=asset.resource_defs,
        backfill_policy=asset.backfill_policy,
        hook_defs=asset.hook_defs,
    )
