"""The graph as Dagster sees it, of the smallest recipe and of one that switches on what it can: assets, checks, jobs, sensors,
schedules.

    python -m tests.golden.graph.dump        # writes graph.json anew, after the graph was changed on purpose; read the
    difference
"""

import json
import tempfile
from pathlib import Path
from typing import Any

import dagster as dg

GOLDEN = Path(__file__).with_name("graph.json")
SMALLEST = "workload: shop\nbase_model: tiny\nsources: {gateway: {uri: logs/}}\nfirst_day: 2026-06-01\n"
RECIPES = {
    "smallest": SMALLEST,
    "everything": SMALLEST
    + """
evals: {held: {uri: evals.jsonl}}
seeds: {handmade: {uri: seeds.jsonl}}
curation: {judge: {base_url: "http://localhost:8000/v1", model: big}, min_quality: 4}
datasets: {preference: {}, rl_prompts: {}, calibration: {}, named: {best: {max_rows: 100}}}
teacher: {base_url: "http://localhost:8000/v1", model: big, licence: apache-2.0, trains: student}
second_sft: {dataset: best}
preference: {loss: kto}
reward_model: {}
merge: {models: [preference, sft, base], weights: search}
quantize: {scheme: w4a16}
release: {approval: person, watch: {}}
automation: {watch_logs: true, decide: {enabled: true}, retrain: {enabled: true, cron: "0 3 * * 1"}}
alerts: {slack: {url_env: SLACK}}
retention: {raw_days: 30}
""",
}


def graph_of(recipe: str) -> dict[str, Any]:
    """Names and what they depend on, of a recipe's text; every list is sorted."""
    from pipelines.graph.recipe_graph import definitions

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "recipe.yaml"
        path.write_text(recipe)
        graph = definitions(path, Path(folder) / "lake")
        repository, assets = graph.get_repository_def(), graph.resolve_asset_graph()
        return {
            "assets": {_name(key): _asset(assets, key) for key in sorted(assets.get_all_asset_keys(), key=_name)},
            "checks": {
                f"{_name(key.asset_key)}:{key.name}": _check(assets, key)
                for key in sorted(assets.asset_check_keys, key=lambda key: (_name(key.asset_key), key.name))
            },
            "jobs": {
                job.name: _steps(job)
                for job in sorted(repository.get_all_jobs(), key=lambda job: job.name)
                if not job.name.startswith("__")
            },
            "schedules": {
                schedule.name: {"cron": schedule.cron_schedule, "job": schedule.job_name}
                for schedule in sorted(repository.schedule_defs, key=lambda schedule: schedule.name)
            },
            "sensors": {
                sensor.name: {
                    "kind": sensor.sensor_type.value,
                    "seconds": sensor.minimum_interval_seconds,
                    "jobs": sorted(target.job_name for target in sensor.targets),
                }
                for sensor in sorted(repository.sensor_defs, key=lambda sensor: sensor.name)
            },
        }


def _name(key: dg.AssetKey) -> str:
    return key.path[-1]


def _asset(assets: Any, key: dg.AssetKey) -> dict[str, Any]:
    asset = assets.get(key)
    return {
        "reads": sorted(map(_name, asset.parent_keys)),
        "group": asset.group_name,
        "partitions": type(asset.partitions_def).__name__ if asset.partitions_def else None,
        "pools": sorted(asset.pools or ()),
        "freshness": asset.freshness_policy is not None,
    }


def _check(assets: Any, key: dg.AssetCheckKey) -> dict[str, Any]:
    check = assets.get(key)
    return {"blocking": check.blocking, "reads": sorted(_name(parent) for parent in check.parent_entity_keys - {key.asset_key})}


def _steps(job: dg.JobDefinition) -> list[str]:
    return sorted(node.name for node in job.nodes)


def dump() -> dict[str, Any]:
    return {name: graph_of(recipe) for name, recipe in RECIPES.items()}


def as_text(graphs: dict[str, Any]) -> str:
    return json.dumps(graphs, indent=1) + "\n"


if __name__ == "__main__":
    GOLDEN.write_text(as_text(dump()))
