"""Which program serves a release."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from benchmarks.stand_in_vllm import stand_in_vllm
from model_ops.evaluation import SmokeResult
from model_ops.jobs import Misuse
from model_ops.machine.precision import Speeds
from model_ops.serving import cpu_dtype
from model_ops.serving.server_process import NotRunnable
from pipelines.cli import app
from resources.lake.lake import LakeLayout
from resources.releases.release import read_release
from resources.serving import programs, release_server
from resources.serving.follow import Follower, Slot
from resources.serving.programs import Program, ServeError, command_of, find_program
from resources.serving.release_server import ReleaseServer, ServeSettings


def test_a_named_program_is_an_interpreter_or_the_command(tmp_path):
    python = stand_in_vllm(tmp_path / "vllm")
    assert find_program(None, str(python)) == Program("vllm", (str(python), "-m", "vllm.entrypoints.cli.main"))
    command = tmp_path / "bin" / "vllm"
    command.parent.mkdir()
    command.write_text("#!/bin/sh\n")
    command.chmod(0o755)
    assert find_program(None, str(command)) == Program("vllm", (str(command),))
    for kind, given, said in (
        ("sglang", python, "runs no Python that has sglang: name the interpreter"),
        ("transformers", command, "is vLLM, and --server asks for transformers"),
        (None, tmp_path / "none", "there is no such program"),
        (None, "/bin/false", r"runs no Python that has vllm or sglang or transformers\[serving\]"),
    ):
        with pytest.raises(ServeError, match=said):
            find_program(kind, str(given))


def test_without_one_the_first_server_that_is_installed_is_taken(tmp_path, monkeypatch):
    installed = {"transformers", "fastapi", "openai", "uvicorn"}
    monkeypatch.setattr(programs, "has_package", lambda python, package: package in installed)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_program(None, None) == Program("transformers", (sys.executable, "-m", "transformers.cli.transformers", "serve"))
    (tmp_path / "vllm").write_text("#!/bin/sh\n")
    (tmp_path / "vllm").chmod(0o755)
    assert find_program(None, None) == Program("vllm", (str(tmp_path / "vllm"),))
    installed.add("sglang")
    assert find_program("sglang", None).words == (sys.executable, "-m", "sglang.launch_server")
    installed.clear()
    (tmp_path / "vllm").unlink()
    with pytest.raises(ServeError, match=r"no inference server is installed here .*make serve-env"):
        find_program(None, None)


@pytest.mark.parametrize(("kind", "called"), [("vllm", "serve"), ("sglang", "sglang.launch_server")])
def test_the_script_of_the_release_starts_the_program_that_was_chosen(kind, called, tmp_path, make_release):
    lake = LakeLayout.open(tmp_path / "lake")
    release = make_release(lake, 1)
    python = tmp_path / "with space" / "python"
    python.parent.mkdir()
    python.write_text('#!/bin/sh\necho "chosen $*"\n')
    python.chmod(0o755)
    words = {"vllm": (str(python), "-m", "vllm.entrypoints.cli.main"), "sglang": (str(python), "-m", "sglang.launch_server")}[
        kind
    ]
    with command_of(Program(kind, words), lake, release) as command:
        done = subprocess.run([*command.words, "--port", "1"], env=dict(command.environment), capture_output=True, text=True)
    assert done.stdout.startswith(f"chosen -m {words[-1]} ") and called in done.stdout and done.stdout.endswith("--port 1\n")
    assert str(lake.root / "models") in done.stdout


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ('<tool_call>\n{"name": {{ name }}, "arguments": {{ arguments }}}\n</tool_call>', "--tool-call-parser hermes --port 1"),
        ("<tool_call><function={{ name }}>{{ arguments }}</function>", "serve --port 1"),
        ("[TOOL_CALLS]{{ name }}", "--tool-call-parser mistral --port 1"),
        ("no tools", "serve --port 1"),
    ],
)
def test_vllm_is_told_how_the_target_writes_tool_calls(template, words, tmp_path, make_release):
    lake = LakeLayout.open(tmp_path / "lake")
    release = make_release(lake, 1)
    (lake.root / read_release(release).target.path / "chat_template.jinja").write_text(template)
    script = release / "serve-vllm.sh"
    script.write_text('exec vllm serve "$@"\n')
    with command_of(Program("vllm", ("echo",)), lake, release) as command:
        said = subprocess.run([*command.words, "--port", "1"], env=dict(command.environment), capture_output=True, text=True)
        assert said.stdout.strip().endswith(words)
    script.write_text('exec vllm serve --tool-call-parser mine "$@"\n')
    with command_of(Program("vllm", ("echo",)), lake, release) as command:
        assert command.words == ["bash", str(script)]


def test_transformers_serves_the_target_under_the_name_of_the_workload(tmp_path, make_release):
    lake = LakeLayout.open(tmp_path / "lake")
    release = make_release(lake, 1)
    with command_of(Program("transformers", ("python", "serve")), lake, release) as command:
        assert command.words == ["python", "serve", "tutor"]
        assert (command.folder / "tutor").resolve().parent == lake.root / "models/tutor/sft_model"


def test_a_release_without_the_server_s_script_is_named(tmp_path, make_release):
    lake = LakeLayout.open(tmp_path / "lake")
    release = make_release(lake, 1)
    (release / "serve-vllm.sh").unlink()
    with (
        pytest.raises(ServeError, match=r"has no serve-vllm.sh: serve it with another --server"),
        command_of(Program("vllm", ("vllm",)), lake, release),
    ):
        pass


@pytest.mark.parametrize(
    "words, sentence",
    [
        (("nosuch",), "has no endpoint of 'nosuch'; there are: none yet"),
        (("--", "--max-model-len", "4096"), "name a workload before --"),
    ],
)
def test_what_is_asked_for_in_vain_ends_before_a_server_is_sought(tmp_path, words, sentence):
    LakeLayout.open(tmp_path / "lake")
    done = CliRunner().invoke(app, ["serve", "--lake", str(tmp_path / "lake"), "--program", "/nowhere", *words])
    assert sentence in f"{done.exception} {done.output}"


def test_an_absent_program_is_a_misuse():
    with pytest.raises(Misuse, match="there is no such program"):
        find_program(None, "/nowhere/python")


@pytest.mark.parametrize(
    "given, words",
    [
        (("--max-model-len", "512"), ["--max-model-len", "512", "--dtype", "float32"]),
        (("--dtype", "half"), ["--dtype", "half"]),
    ],
)
def test_a_server_on_a_cpu_that_is_slow_in_bfloat16_is_started_in_float32(given, words, tmp_path, make_release, monkeypatch):
    started, said = [], []

    def running_server(command, **_):
        started.append(command)
        raise NotRunnable("it is only looked at")

    monkeypatch.setattr(release_server, "running_server", running_server)
    monkeypatch.setattr(cpu_dtype, "cpu_speeds", lambda threads: Speeds(float32=12.0, bfloat16=0.5))
    monkeypatch.setattr(cpu_dtype, "ACCELERATORS", ())
    lake = LakeLayout.open(tmp_path / "lake")
    settings = ServeSettings(Program("vllm", ("vllm",)), tmp_path / "logs", given)
    release = make_release(lake, 1)
    (lake.root / read_release(release).target.path / "config.json").write_text("{}")
    with pytest.raises(ServeError, match="only looked at"):
        ReleaseServer.start(lake, release, settings, say=said.append)
    assert started[0][-len(words) :] == words
    assert said == ([f"release {release.name}: {cpu_dtype.SERVES_FLOAT32}"] if "float32" in words else [])


class NoHost:
    """Notes what a follower does with a release."""

    def __init__(self, passed):
        self.settings = SimpleNamespace(smoke=True)
        self.calls = []
        self._passed = passed

    def name(self, slot):
        return slot.workload

    def start(self, slot, directory, meanwhile):
        server = SimpleNamespace(ended=False, log=Path("server.log"))
        return SimpleNamespace(server=server, smoke=lambda *_: [SmokeResult("stop", self._passed, "it goes on")])

    def begin(self, loaded):
        self.calls.append("begin")

    def discard(self, loaded):
        self.calls.append("discard")


@pytest.mark.parametrize("passed, calls", [(True, ["begin"]), (None, ["begin"]), (False, ["discard"])])
def test_a_release_takes_traffic_only_where_it_passes(passed, calls):
    host, slot, said = NoHost(passed), Slot("tutor", "champion"), []
    follower = Follower(None, host, None, [slot], said.append)
    if passed is False:
        with pytest.raises(ServeError, match=r"release 3f2a did not pass the smoke set: .*it goes on \(log: server\.log\)"):
            follower._started(slot, Path("3f2a"))
    else:
        follower._started(slot, Path("3f2a"))
        assert ("not checked" in said[0]) == (passed is None)
    assert host.calls == calls
