"""A release in a real vLLM: another model in its place is found out, and the right one passes the smoke set and answers."""

import json

import pytest
import urllib3

from resources.gateway.front import Front
from resources.gateway.pass_through import RELEASE_HEADER
from resources.serving.endpoint_server import ServerHost
from resources.serving.follow import Follower, Slot
from resources.serving.programs import ServeError, find_program
from resources.serving.release_server import ServeSettings

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("vllm")]

WORDS = ["--enforce-eager", "--max-model-len", "512"]
CHECKS = {"answers", "stream", "stop", "json schema", "tool call", "regex", "grammar", "long prompt", "drafting", "template",
    "text"}  # fmt: skip


@pytest.mark.thorough
def test_another_model_in_its_place_is_found_out(python, toy, promoted, tmp_path):
    lake, _ = promoted
    with Front("127.0.0.1", 0, drain_s=30) as front:
        wrong = ServeSettings(find_program(None, str(python)), tmp_path / "logs", [*WORDS, "--load-format", "dummy"])
        following = Follower(lake, ServerHost(lake, wrong, print), front, [Slot(toy.workload, "champion")], print)
        with pytest.raises(ServeError, match=r"did not pass the smoke set: .*text: .* of the target's own layers"):
            following.bring_up()
        assert front.routes == ()


def test_the_release_is_tried_before_it_answers(python, toy, promoted, tmp_path):
    lake, release = promoted
    program, said = find_program(None, str(python)), []
    with Front("127.0.0.1", 0, drain_s=30) as front:
        host = ServerHost(lake, ServeSettings(program, tmp_path / "logs", WORDS), said.append)
        following = Follower(lake, host, front, [Slot(toy.workload, "champion")], said.append)
        try:
            following.bring_up()
            findings = json.loads((tmp_path / "logs" / f"{release.name}.smoke.json").read_text())["findings"]
            assert {finding["name"] for finding in findings if finding["passed"]} == CHECKS
            answer = urllib3.request(
                "POST",
                f"{front.url}/v1/chat/completions",
                body=json.dumps(
                    {"model": toy.workload, "messages": [{"role": "user", "content": "def area("}], "max_tokens": 8}
                ),
                headers={"Content-Type": "application/json"},
            )
            assert (answer.status, answer.headers[RELEASE_HEADER]) == (200, release.name)
        finally:
            following.close()
