"""A person approves, rejects and rolls back in the UI: by the GraphQL of a real webserver, as its Launchpad asks it."""

import json
import signal
import subprocess
import sys
import time
import urllib.request

import pytest

from resources.endpoints.endpoints import Endpoint
from resources.lake.lake import LakeLayout
from tests.pipelines.keeping.test_ui import PROJECT, ask, free_port, wait_until_ready

RECIPE = "workload: tutor\nbase_model: tiny\nsources: {gateway: {uri: logs}}\nfirst_day: 2026-06-01\nlast_day: 2026-06-05\n"
LAUNCH = """mutation ($job: String!, $config: RunConfigData!, $location: String!) { launchRun(executionParams: {
  selector: {jobName: $job, repositoryName: "__repository__", repositoryLocationName: $location}, runConfigData: $config}) {
  __typename ... on LaunchRunSuccess { run { runId } } ... on PythonError { message } } }"""
ENDED = ("SUCCESS", "FAILURE", "CANCELED")


def launched(address, job, step, form):
    """The status of a run that the Launchpad would start, and the message of the step that failed."""
    variables = {"job": job, "config": json.dumps({"ops": {step: {"config": form}}}), "location": "tutor"}
    data = json.dumps({"query": LAUNCH, "variables": variables}).encode()
    request = urllib.request.Request(f"{address}/graphql", headers={"content-type": "application/json"}, data=data)
    answer = json.loads(urllib.request.urlopen(request, timeout=60).read())["data"]["launchRun"]
    assert answer["__typename"] == "LaunchRunSuccess", answer
    run, deadline = answer["run"]["runId"], time.monotonic() + 120
    while time.monotonic() < deadline:
        found = ask(
            address,
            f'{{ runOrError(runId: "{run}") {{ ... on Run {{ status eventConnection {{ events {{ __typename '
            "... on ExecutionStepFailureEvent { error { message cause { message } } } } } } } }",
        )["runOrError"]
        if found["status"] in ENDED:
            failed = [event["error"] for event in found["eventConnection"]["events"] if event.get("error")]
            return found["status"], json.dumps(failed)
        time.sleep(1)
    pytest.fail(f"run {run} did not end")


@pytest.mark.slow
@pytest.mark.thorough
def test_decisions_by_the_graphql_of_a_real_webserver(tmp_path, make_release):
    lake = LakeLayout.open(tmp_path / "lake")
    first, second = make_release(lake, 1), make_release(lake, 2)
    (tmp_path / "tutor.yaml").write_text(RECIPE)
    port = free_port()
    words = ["ui", str(tmp_path / "tutor.yaml"), "--lake", str(lake.root), "--port", str(port)]
    server = subprocess.Popen(
        [sys.executable, "-m", "pipelines.cli", *words],
        cwd=PROJECT,
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        address = f"http://127.0.0.1:{port}"
        wait_until_ready(server, address)
        assert launched(address, "approve", "approve_release", {"release": first.name, "name": "Ana"})[0] == "SUCCESS"
        status, _ = launched(address, "approve", "approve_release", {"release": second.name, "name": "Ana", "reason": "read"})
        assert status == "SUCCESS" and Endpoint(lake, "tutor").read().champion == second.name
        status, said = launched(address, "reject", "reject_release", {"release": second.name, "name": "Ana"})
        assert status == "FAILURE" and "the endpoint needs another one" in said
        assert launched(address, "rollback", "roll_back_endpoint", {"name": "Bob", "reason": "rude"})[0] == "SUCCESS"
        assert Endpoint(lake, "tutor").read().champion == first.name
        assert [entry.by for entry in Endpoint(lake, "tutor").entries() if entry.action != "promoted"] == ["Ana", "Ana", "Bob"]
    finally:
        server.send_signal(signal.SIGINT)
        assert server.wait(timeout=60) == 0
