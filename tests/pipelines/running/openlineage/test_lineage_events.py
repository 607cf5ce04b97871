"""OpenLineage: events, where they go, and what a collector that is away costs."""

import importlib.util
import json
import threading
import time
import uuid
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import jsonschema
import pytest

from pipelines.running.openlineage.destination import OpenLineageError, OpenLineageSettings, destination
from pipelines.running.openlineage.events import Dataset, StepRun, event

SCHEMA = json.loads((Path(__file__).parent / "run_event.schema.json").read_text())
STEP = StepRun("millrace", "shop/sft_dataset", str(uuid.uuid4()), str(uuid.uuid4()), "shop/train")
AT = datetime(2026, 6, 1, 12, tzinfo=UTC)


def valid(found):
    jsonschema.Draft202012Validator(SCHEMA, format_checker=jsonschema.FormatChecker()).validate(found)
    return found


def full_event():
    made = Dataset(
        "/lake/datasets/shop/sft_dataset",
        "d1",
        {"messages": "string"},
        {"messages": [("/lake/datasets/shop/curated", "messages"), ("s3://bucket/a/b", "x")]},
        rows=3,
        size=120,
    )
    return event("COMPLETE", STEP, AT, [Dataset("s3://bucket/a/b"), Dataset("/lake/tables/feedback")], [made])


def test_every_kind_of_event_has_what_the_specification_asks_for():
    for state in ("START", "COMPLETE", "FAIL", "ABORT"):
        valid(event(state, STEP, AT, error="no room on the disk" if state == "FAIL" else ""))
    found = valid(full_event())
    assert [(item["namespace"], item["name"]) for item in found["inputs"]] == [
        ("s3://bucket", "a/b"),
        ("file", "/lake/tables/feedback"),
    ]
    [made] = found["outputs"]
    assert made["facets"]["columnLineage"]["fields"]["messages"]["inputFields"][1] == {
        "namespace": "s3://bucket",
        "name": "a/b",
        "field": "x",
    }
    assert made["outputFacets"]["outputStatistics"]["rowCount"] == 3


def test_the_schema_finds_what_is_wrong():
    for path, value in (
        (("run", "runId"), "7"),
        (("eventTime",), "yesterday"),
        (("eventType",), "DONE"),
        (("outputs", 0, "facets", "schema", "_producer"), None),
        (("job", "name"), ""),
    ):
        wrong = json.loads(json.dumps(full_event()))
        place = wrong
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value
        with pytest.raises(jsonschema.ValidationError):
            valid(wrong)


@pytest.mark.skipif(importlib.util.find_spec("openlineage") is None, reason="needs the package openlineage-python")
def test_openlineages_own_classes_take_every_event_and_facet():
    from openlineage.client.event_v2 import InputDataset, Job, OutputDataset, Run, RunEvent, RunState
    from openlineage.client.generated import (
        column_lineage_dataset,
        dataset_version_dataset,
        error_message_run,
        job_type_job,
        output_statistics_output_dataset,
        parent_run,
        schema_dataset,
    )

    classes = {
        "schema": schema_dataset.SchemaDatasetFacet,
        "version": dataset_version_dataset.DatasetVersionDatasetFacet,
        "columnLineage": column_lineage_dataset.ColumnLineageDatasetFacet,
        "parent": parent_run.ParentRunFacet,
        "errorMessage": error_message_run.ErrorMessageRunFacet,
        "jobType": job_type_job.JobTypeJobFacet,
        "outputStatistics": output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet,
    }

    def facets(said):
        return {
            name: classes[name](**{key: value for key, value in content.items() if not key.startswith("_")})
            for name, content in said.items()
        }

    for found in (full_event(), event("FAIL", STEP, AT, error="no room")):
        RunEvent(
            eventType=RunState[found["eventType"]],
            eventTime=found["eventTime"],
            producer=found["producer"],
            run=Run(found["run"]["runId"], facets(found["run"]["facets"])),
            job=Job(found["job"]["namespace"], found["job"]["name"], facets(found["job"]["facets"])),
            inputs=[InputDataset(item["namespace"], item["name"], facets=facets(item["facets"])) for item in found["inputs"]],
            outputs=[
                OutputDataset(
                    item["namespace"], item["name"], facets=facets(item["facets"]), outputFacets=facets(item["outputFacets"])
                )
                for item in found["outputs"]
            ],
        )


def test_the_environment_says_where_events_go(tmp_path):
    of = OpenLineageSettings.of
    assert of({}) is None and of({"OPENLINEAGE_URL": "http://host", "OPENLINEAGE_DISABLED": "true"}) is None
    assert of({"OPENLINEAGE_URL": "http://host:5000/"}).url == "http://host:5000/api/v1/lineage"
    keyed = of(
        {
            "OPENLINEAGE_URL": "https://host",
            "OPENLINEAGE_ENDPOINT": "/v2",
            "OPENLINEAGE_API_KEY": "s3cret",
            "OPENLINEAGE_NAMESPACE": "n",
        }
    )
    assert keyed.url == "https://host/v2" and keyed.namespace == "n" and "s3cret" not in repr(keyed)
    for given in (str(tmp_path / "events.ndjson"), (tmp_path / "events.ndjson").as_uri()):
        assert of({"OPENLINEAGE_URL": given}).file == tmp_path / "events.ndjson"
    for given, said in (
        ("http://me:pw@host", "OPENLINEAGE_API_KEY"),
        ("ftp://host/x", "http:// or https://"),
        ("http://", "no host"),
        (str(tmp_path / "none" / "x"), "existing folder"),
        (str(tmp_path), "existing folder"),
    ):
        with pytest.raises(OpenLineageError, match=said) as caught:
            of({"OPENLINEAGE_URL": given})
        assert "pw" not in str(caught.value)


def test_events_in_a_file_are_lines(tmp_path):
    said = []
    for _ in range(2):
        with destination(OpenLineageSettings(file=tmp_path / "events.ndjson"), said.append) as send:
            send(full_event())
            send(event("START", STEP, AT))
    lines = (tmp_path / "events.ndjson").read_text().splitlines()
    assert [valid(json.loads(line))["eventType"] for line in lines] == ["COMPLETE", "START"] * 2 and said == []


@pytest.fixture
def collector():
    """A server that keeps what it is sent; `status` is its answer."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            server.got.append((self.path, self.headers.get("Authorization"), json.loads(body)))
            self.send_response(server.status)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.got, server.status = [], 201
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def test_a_collector_gets_each_event_with_the_key(collector):
    said = []
    settings = OpenLineageSettings.of(
        {"OPENLINEAGE_URL": f"http://127.0.0.1:{collector.server_port}", "OPENLINEAGE_API_KEY": "s3cret"}
    )
    with destination(settings, said.append) as send:
        send(full_event())
    [(path, key, found)] = collector.got
    assert (path, key, said) == ("/api/v1/lineage", "Bearer s3cret", []) and valid(found)["eventType"] == "COMPLETE"


def test_a_collector_that_is_away_or_refuses_costs_no_time_and_is_said_once(collector):
    collector.status = 403
    for port in (collector.server_port, 9):  # nothing listens on port 9
        said = []
        settings = OpenLineageSettings.of({"OPENLINEAGE_URL": f"http://127.0.0.1:{port}", "OPENLINEAGE_API_KEY": "s3cret"})
        start = time.monotonic()
        with destination(settings, said.append) as send:
            for _ in range(20):
                send(full_event())
            inside = time.monotonic() - start
        assert (
            inside < 2 and len(said) == 1 and "20 of 20 OpenLineage events did not reach" in said[0] and "s3cret" not in said[0]
        )
    assert "status 403" in said[0] or len(collector.got) == 3  # after three refusals the rest is not tried
