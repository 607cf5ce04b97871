"""OpenLineage events of a real run."""

import json
import shutil
from pathlib import Path

import jsonschema
import pytest

SCHEMA = json.loads((Path(__file__).parent / "openlineage" / "run_event.schema.json").read_text())


@pytest.mark.slow
def test_each_step_of_a_run_begins_and_ends_with_its_columns(toy, cli, tmp_path):
    lake = shutil.copytree(toy.lake, tmp_path / "lake", symlinks=True)
    events = tmp_path / "events.ndjson"
    cli(
        "run",
        toy.recipe,
        "--lake",
        lake,
        "--select",
        "curated_interactions",
        "--select",
        "sft_dataset",
        OPENLINEAGE_URL=str(events),
    )
    found = [json.loads(line) for line in events.read_text().splitlines()]
    for event in found:
        jsonschema.Draft202012Validator(SCHEMA).validate(event)
    assert [(event["eventType"], event["job"]["name"].rpartition("/")[2]) for event in found] == [
        ("START", "curated_interactions"),
        ("COMPLETE", "curated_interactions"),
        ("START", "sft_dataset"),
        ("COMPLETE", "sft_dataset"),
    ]
    assert len({event["run"]["runId"] for event in found}) == 2
    [made] = found[-1]["outputs"]
    assert (
        made["name"] == f"{lake}/datasets/{toy.workload}/sft_dataset"
        and made["outputFacets"]["outputStatistics"]["rowCount"] > 0
    )
    [*_, source] = made["facets"]["columnLineage"]["fields"]["messages"]["inputFields"]
    assert source["name"] == f"{lake}/datasets/{toy.workload}/curated_interactions"


@pytest.mark.slow
def test_a_destination_that_is_none_starts_nothing(toy, cli, tmp_path):
    done = cli("run", toy.recipe, "--lake", toy.lake, "--select", "eval_suite", check=2, OPENLINEAGE_URL="ftp://somewhere")
    assert "OPENLINEAGE_URL ftp://somewhere" in done.stderr
