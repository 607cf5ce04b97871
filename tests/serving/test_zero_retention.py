"""A release's own script starts a real vLLM server: what answers say of the release, and what is kept of what was said.

A marked text is sent in prompts, stop words, schemas, names and addresses, through answers, errors and a crash in the middle of
an answer. Then every file that the server wrote, and all that it printed, is searched for it.
"""

import json
import os
import signal
import socket
import subprocess
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
import urllib3

from model_ops.drafting.drafts import with_drafter
from model_ops.serving.service import Service, fingerprint
from model_ops.speculators.registry import ARCHITECTURES
from resources.releases.release import generation_config
from resources.releases.serving_scripts import ServingPlan, write_serving_files
from tests.model_ops.tiny_models import write_target

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("vllm")]

MARK = "Zq7sentinelWx9"
SAID = fingerprint("3f2a91c0d4e5", "ab" * 32)
SHARED = Path("/dev/shm")
STARTS_WITHIN_S, ENDS_WITHIN_S = 600, 90


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    root = tmp_path_factory.mktemp("retained")
    for name, layers in (("target", 4), ("drafter", 2)):
        write_target(
            root / "models" / name,
            layers=layers,
            vocab_size=384,
            hidden_size=128,
            intermediate_size=256,
            head_dim=32,
            max_position_embeddings=512,
        )
    return root


class Released:
    """The server of a release that `serve-vllm.sh` starts; everything that it may write lies in `home`."""

    def __init__(self, python: Path, lake: Path, home: Path, zero_retention: bool):
        plan = ServingPlan(
            "tutor",
            "r1",
            "models/target",
            "models/drafter",
            ARCHITECTURES["draft_model"].serving,
            with_drafter(2),
            Service(SAID, zero_retention=zero_retention, drain_s=20),
            has_generation_config=True,
        )
        release = lake / plan.directory
        release.mkdir(parents=True, exist_ok=True)
        write_serving_files(release, plan)
        (release / "generation_config.json").write_text(json.dumps(generation_config(lake / "models/target")))
        for name in ("bin", "tmp", "plugin"):
            (home / name).mkdir(parents=True)
        vllm = home / "bin" / "vllm"
        vllm.write_text(f'#!/bin/sh\nexec {python} -m vllm.entrypoints.cli.main "$@"\n')
        vllm.chmod(0o755)
        told = home / "plugin" / "crash_when_asked-1.dist-info"
        told.mkdir()
        (told / "METADATA").write_text("Metadata-Version: 2.1\nName: crash-when-asked\nVersion: 1\n")
        (told / "entry_points.txt").write_text("[vllm.general_plugins]\ncrash = crash_when_asked:install\n")
        (home / "plugin" / "crash_when_asked.py").write_text(Path(__file__).with_name("crash_when_asked.py").read_text())
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.home, self.url, self.crash = home, f"http://127.0.0.1:{port}", home / "crash"
        self.shared_before = set(SHARED.iterdir())
        environment = {
            "PATH": f"{home / 'bin'}:/usr/bin:/bin",
            "HOME": str(home),
            "TMPDIR": str(home / "tmp"),
            "XDG_CACHE_HOME": str(home / "cache"),
            "PYTHONPATH": str(home / "plugin"),
            "MILLRACE_TEST_CRASH": str(self.crash),
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": "2",
        }
        self.output = (home / "output.log").open("wb")
        self.process = subprocess.Popen(
            [
                "bash",
                release / "serve-vllm.sh",
                "--enforce-eager",
                "--max-model-len",
                "256",
                "--host",
                "127.0.0.1",
                "--port",
                str(port),
            ],
            cwd=home / "tmp",
            env=environment,
            stdout=self.output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        began = time.monotonic()
        while not self.is_up():
            ended = self.process.poll() is not None or time.monotonic() - began > STARTS_WITHIN_S
            assert not ended, (home / "output.log").read_text(errors="replace")[-4_000:]
            time.sleep(0.5)

    def is_up(self) -> bool:
        try:
            return urllib3.request("GET", f"{self.url}/health", retries=False, timeout=5).status == 200
        except urllib3.exceptions.HTTPError:
            return False

    def ask(self, path="/v1/chat/completions", content=None, **body):
        """Status and text of an answer. content: the body as it is."""
        if content is None:
            content = json.dumps(
                {"model": "tutor", "messages": [{"role": "user", "content": f"print {MARK}"}], "max_tokens": 8, **body}
            )
        found = urllib3.request(
            "POST", f"{self.url}{path}", body=content, headers={"Content-Type": "application/json"}, retries=False, timeout=60
        )
        return found.status, found.data.decode()

    def places(self) -> list[str]:
        """Where the marked text is: files under `home`, the output among them, and shared memory."""
        found = [*self.home.rglob("*"), *(path for path in SHARED.iterdir() if path not in self.shared_before)]
        return [str(path) for path in found if path.is_file() and _holds(path)]

    def end(self):
        """Ends the server as `kill` would, and waits until its last process, which removes shared memory, has gone."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGTERM)
        began = time.monotonic()
        while time.monotonic() - began < ENDS_WITHIN_S and self._lives():
            time.sleep(0.2)
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.output.close()

    def _lives(self) -> bool:
        self.process.poll()
        try:
            os.killpg(self.process.pid, 0)
        except ProcessLookupError:
            return False
        return True


def _holds(path: Path) -> bool:
    try:
        return MARK.encode() in path.read_bytes() or MARK.encode("utf-16-le") in path.read_bytes()
    except OSError:
        return False


def say_everywhere(server: Released) -> list[int]:
    """Sends the marked text in every place of a request that a client may fill; returns the statuses."""
    schema = {"type": "object", "properties": {MARK: {"type": "string", "enum": [MARK]}}, "required": [MARK]}
    shaped = {"type": "json_schema", "json_schema": {"name": MARK, "schema": schema}}
    tool = {"type": "function", "function": {"name": MARK, "description": MARK, "parameters": schema}}
    asked = [
        {},
        {"stream": True},
        {"stop": [MARK]},
        {"user": MARK, "logprobs": True, "top_logprobs": 2},
        {"cache_salt": MARK},
        {"response_format": shaped, "max_tokens": 40},
        {"tools": [tool]},
        {"structured_outputs": {"regex": f"{MARK}[0-9]"}},
        # errors
        {"model": MARK},
        {"messages": [{"role": MARK, "content": MARK}]},
        {"messages": MARK},
        {"max_tokens": MARK},
        {"temperature": -1, "stop": [MARK]},
        {"messages": [{"role": "user", "content": f"{MARK} " * 2_000}]},
        {"tools": [tool], "tool_choice": "required"},
        {"structured_outputs": {"regex": f"{MARK}(("}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": MARK, "schema": {"type": MARK}}}},
        {
            "messages": [
                {"role": "user", "content": [{"type": "image_url", "image_url": {"url": f"http://127.0.0.1:9/{MARK}.png"}}]}
            ]
        },
        {"chat_template": "{{ raise_exception(messages[0].content) }}"},
        {"chat_template_kwargs": {MARK: MARK}},
        {"messages": [{"role": "user", "content": [{"type": MARK, MARK: MARK}]}]},
        {"logit_bias": {MARK: 1}},
        {"bad_words": [MARK]},
        {"vllm_xargs": {MARK: MARK}},
    ]
    statuses = [server.ask(**body)[0] for body in asked]
    statuses += [server.ask(content=f'{{"model": "tutor", "{MARK}')[0], server.ask(f"/v1/{MARK}?q={MARK}")[0]]
    statuses += [
        server.ask(path, content=json.dumps({"model": "tutor", **body}))[0]
        for path, body in (
            ("/v1/completions", {"prompt": MARK, "max_tokens": 4}),
            ("/tokenize", {"prompt": MARK}),
            ("/v1/responses", {"input": MARK, "store": True, "max_output_tokens": 8}),
            ("/detokenize", {"tokens": [10**9]}),
        )
    ]
    return statuses


def crash_while_answering(server: Released) -> None:
    """The model fails while it answers a request that holds the marked text everywhere."""

    def ask():
        with suppress(urllib3.exceptions.HTTPError):
            server.ask(
                max_tokens=200,
                ignore_eos=True,
                stop=[MARK],
                bad_words=[MARK],
                structured_outputs={"regex": f"({MARK}|[a-z ])*"},
            )

    asking = threading.Thread(target=ask)
    asking.start()
    time.sleep(0.3)
    server.crash.touch()
    asking.join(timeout=60)
    with suppress(subprocess.TimeoutExpired):
        server.process.wait(timeout=ENDS_WITHIN_S)


@pytest.fixture
def short_folder():
    """vLLM opens sockets in its temporary folder, and the path of a socket has at most 107 characters."""
    with tempfile.TemporaryDirectory(prefix="zero-") as folder:
        yield Path(folder)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "zero_retention",
    [
        pytest.param(True, id="nothing is kept"),
        pytest.param(False, id="by default a crash shows it", marks=pytest.mark.thorough),
    ],
)  # the search can find something
def test_what_is_kept_of_a_marked_text(python, models, short_folder, zero_retention):
    server = Released(python, models, short_folder / "home", zero_retention)
    try:
        status, text = server.ask()
        answer = json.loads(text)
        assert status == 200 and answer["system_fingerprint"] == SAID and answer["model"] == "tutor"
        drafted = answer["metrics"]["speculative_decoding"]
        print(answer["metrics"])
        assert answer["metrics"]["time_to_first_token_ms"] > 0 and drafted["num_spec_steps"] >= 1
        statuses = say_everywhere(server)
        print(statuses)
        assert statuses[0] == 200 and sum(status >= 400 for status in statuses) >= 8 and server.is_up()
        crash_while_answering(server)
        assert not server.is_up()
    finally:
        server.end()
    printed = (short_folder / "home" / "output.log").read_text(errors="replace")
    assert "the test asked for this failure" in printed
    if zero_retention:
        assert server.places() == [], printed[-3_000:]
        assert not list((short_folder / "home").rglob("core*"))
    else:
        assert server.places(), "the search finds nothing even where a crash is printed in full"
