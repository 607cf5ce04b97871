"""A lake as a run of the whole graph leaves it, by its tables and manifests alone: no weights, made in a fraction of a second.

lake = trained_lake(tmp_path, days=3, rows=100)         # trained on every row, released
log_day(lake, date(2026, 6, 4), rows=200)               # a new day that nothing was trained on
"""

import json
from datetime import UTC, date, datetime, timedelta

import pyarrow as pa

from resources.artefacts.registry import Registry
from resources.endpoints.endpoint_log import Actor
from resources.endpoints.endpoints import Endpoint
from resources.lake.lake import LakeLayout
from resources.lake.tables import SCHEMAS, Tables
from resources.releases.release import ReleaseRef

FIRST = date(2026, 6, 1)
ANA = Actor("ana", "test", "looks right")
MODELS = ("base_model", "sft_model", "student_model", "quantized_model")


def log_day(lake, day, rows, source="gateway"):
    """A day of clean rows with 100 answer tokens each, in both tables."""
    ts = datetime(day.year, day.month, day.day, 12, tzinfo=UTC)
    for name, more in (("interactions", {"completion_tokens": 100}), ("cleaned_interactions", {"status": "ok"})):
        row = dict.fromkeys(SCHEMAS[name].names) | {"workload": "shop", "dt": day, "ts": ts, "source": source, **more}
        table = [row | {"interaction_id": f"{day}-{number}"} for number in range(rows)]
        Tables(lake).replace(name, pa.Table.from_pylist(table, schema=SCHEMAS[name]), workload="shop", dt=[day])


def alarm_on(lake, release, *days, test="bad_feedback"):
    """Alarms of a test of drift."""
    fixed = {"workload": "shop", "release": release, "window_days": 1, "test": test, "value": 2.0, "bound": 1.0, "alarm": True}
    rows = [dict.fromkeys(SCHEMAS["drift"].names) | fixed | {"dt": day, "ts": datetime(2026, 6, 5, tzinfo=UTC)} for day in days]
    Tables(lake).append("drift", pa.Table.from_pylist(rows, schema=SCHEMAS["drift"]))


def trained_lake(tmp_path, days=3, rows=100):
    """The lake, with a champion."""
    lake = LakeLayout.open(tmp_path / "lake")
    for day in range(days):
        log_day(lake, FIRST + timedelta(day), rows)
    promote(lake, make_all(lake, read=days * rows))
    return lake


def make_all(lake, read, run_id="", **of_drafter):
    """Every artefact of a run; its release is the candidate."""
    registry = Registry(lake, "shop", run_id=run_id)

    def made(kind, name, inputs, metrics=None, files=None, **config):
        config, given = {"read": read, **config}, [item.as_input() for item in inputs]
        draft = registry.draft(kind, name, name, ("resources/stages/table.py",), config, given)
        draft.directory.mkdir(parents=True, exist_ok=True)
        for file, content in {"file": f"{name} {read}", **(files or {})}.items():
            (draft.directory / file).write_text(content)
        return draft.finished or registry.finish(draft, {"seconds": 100.0, **(metrics or {})})

    curated = made("dataset", "curated_interactions", [], {"read": read, "seconds": 1.0})
    rows_ = made("dataset", "sft_dataset", [curated])
    models = []
    for name in MODELS:
        models.append(made("model", name, [rows_, *models[-1:]], steps=100))
    answers = made("dataset", "speculator_dataset", [models[-1], rows_], prompts=500)
    drafter = made("model", "speculator", [models[-1], answers], {"validation_expected_tau": 2.0, **of_drafter}, steps=100)
    metrics = {"tau_eagle3_as_logged": 2.0, "tokens_per_second_none_as_logged": 1_000.0}
    report = made("dataset", "evaluation_report", [models[-1], drafter, rows_], metrics, prompts=200)
    parts = {"target": part(models[-1], lake), "speculator": part(drafter, lake)}
    content = json.dumps({"workload": "shop", **parts, "num_speculative_tokens": 3, "gates": []})
    release = made("release", "release", [models[-1], drafter, report], files={"release.json": content})
    directory = lake.artefacts("release") / "shop" / release.version
    Endpoint(lake, "shop").nominate(ReleaseRef.of(directory))
    return release


def part(manifest, lake):
    path = f"models/{manifest.name}/{manifest.version}"
    return {"path": path, "name": manifest.name, "version": manifest.version, "digest": manifest.digest}


def promote(lake, release):
    directory = lake.artefacts("release") / "shop" / release.version
    Endpoint(lake, "shop").decide("approved", ReleaseRef.of(directory), ANA)
    Endpoint(lake, "shop").promote(ReleaseRef.of(directory), ANA)
