"""Files of `millrace deploy`: they mean what was asked for, hold no secret, and systemd and Compose can read them."""

import configparser
import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import typer
import yaml

from pipelines.keeping.dagster_servers import UiError
from pipelines.keeping.deployment import systemd_assignment, systemd_text, systemd_word, write_deployment
from pipelines.keeping.up_servers import UpSettings, WorkloadServer

RECIPE = """
workload: {workload}
base_model: tiny
sources:
  gateway: {{uri: logs}}
  far: {{uri: "{far}/*/part-*.jsonl"}}
first_day: 2026-06-01
last_day: 2026-06-02
"""
SERVICE_KEYS = {
    "build", "image", "hostname", "init", "command", "env_file", "environment", "volumes", "ports", "depends_on", "restart",
    "stop_grace_period", "healthcheck", "deploy",
}  # fmt: skip
"""Keys of a service in the Compose specification that are used here."""


@pytest.fixture
def recipes(tmp_path):
    (tmp_path / "far away" / "2026").mkdir(parents=True)
    (tmp_path / "here").mkdir()
    for workload in ("shop", "club"):
        (tmp_path / "here" / f"{workload}.yaml").write_text(RECIPE.format(workload=workload, far=tmp_path / "far away"))
    return [tmp_path / "here" / "shop.yaml", tmp_path / "here" / "club.yaml"]


def settings(recipes, folder, **more):
    return UpSettings(
        tuple(recipes),
        str(folder / "lake"),
        **{
            "serve": (WorkloadServer("shop", 8000),),
            "capture": str(folder / "50% $traffic"),
            "arguments": ("--max-model-len", "4096"),
            **more,
        },
    )


def unit_of(path):
    parser = configparser.ConfigParser(strict=False, interpolation=None, delimiters=("=",), comment_prefixes=("#",))
    parser.optionxform = str
    parser.read_string(path.read_text())
    return parser


def words_of(line):
    """The words of a command, as systemd reads them."""
    return [word.replace("%%", "%").replace("$$", "$") for word in shlex.split(line)]


def options_of(words):
    """What `millrace up` would be asked with these words."""
    from pipelines.cli import app

    command = typer.main.get_command(app).commands["up"]
    return command.make_context("up", list(words)).params


def test_the_unit_starts_what_was_asked_for(recipes, tmp_path):
    keys = tmp_path / "keys.yaml"
    keys.write_text("{}")
    asked = settings(
        recipes[:1],
        tmp_path,
        to="http://10.0.0.7:8000/v1",
        capture_port=8081,
        logs=tmp_path / "logs",
        keys=keys,
        serve_options=("--wait=60", "--canary=eu"),
    )
    write_deployment(tmp_path / "deploy", asked, "1.2.3")
    for path in ("millrace-shop.service", "user/millrace-shop.service"):
        unit = unit_of(tmp_path / "deploy" / path)
        program, up, *words = words_of(unit["Service"]["ExecStart"])[-len(words_of(unit["Service"]["ExecStart"])) :]
        assert Path(program).is_absolute() and up == "up"
        found = options_of(words)
        assert found["recipe"] == [recipes[0]] and found["lake"] == str(tmp_path / "lake")
        assert (found["serve"], found["capture"]) == (["shop:8000"], str(tmp_path / "50% $traffic"))
        assert (found["to"], found["capture_port"], found["argument"]) == (asked.to, 8081, ["--max-model-len", "4096"])
        assert (found["logs"], found["keys"]) == (tmp_path / "logs", keys)
        assert found["serve_option"] == ["--wait=60", "--canary=eu"]
        assert unit["Service"]["KillMode"] == "mixed" and int(unit["Service"]["TimeoutStopSec"]) > 300


def test_two_recipes_are_one_unit(recipes, tmp_path):
    written = write_deployment(tmp_path / "deploy", settings(recipes, tmp_path), "1.2.3")
    assert tmp_path / "deploy" / "millrace.service" in written and all(path.is_file() for path in written)
    assert options_of(words_of(unit_of(written[0])["Service"]["ExecStart"])[2:])["recipe"] == recipes


@pytest.mark.parametrize("user", [False, True])
def test_systemd_finds_nothing_wrong_with_the_units(recipes, tmp_path, user):
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed here")
    write_deployment(tmp_path / "deploy", settings(recipes[:1], tmp_path), "1.2.3")
    path = tmp_path / "deploy" / ("user" if user else ".") / "millrace-shop.service"
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *(["--user"] if user else []), str(path)],
        capture_output=True,
        text=True,
        env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)},
    )
    if "initialize manager" in done.stderr:
        pytest.skip("systemd cannot check units in this container")
    assert (done.returncode, done.stderr) == (0, "")
    broken = path.with_name("broken.service")
    broken.write_text(path.read_text().replace("ExecStart=/", "ExecStart=nowhere/"))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *(["--user"] if user else []), str(broken)],
        capture_output=True,
        text=True,
        env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)},
    )
    assert done.returncode and "executable" in done.stderr


def test_the_compose_file_has_only_keys_of_the_specification_and_mounts_what_the_recipe_names(recipes, tmp_path):
    write_deployment(tmp_path / "deploy", settings(recipes, tmp_path), "1.2.3", gpus=True)
    compose = yaml.safe_load((tmp_path / "deploy" / "compose.yaml").read_text())
    assert set(compose) == {"name", "services", "volumes"}
    assert all(set(service) <= SERVICE_KEYS for service in compose["services"].values())
    service = compose["services"]["millrace"]
    mounted = {volume["target"].replace("$$", "$"): volume.get("read_only", False) for volume in service["volumes"]}
    assert "$$traffic" in "".join(volume["source"] for volume in service["volumes"])
    assert all(volume["source"] == volume["target"] for volume in service["volumes"])
    assert mounted == {
        str(tmp_path / "here"): True,
        str(tmp_path / "far away"): True,
        str(tmp_path / "lake"): False,
        str(tmp_path / "50% $traffic"): False,
    }
    assert set(service["ports"]) == {"127.0.0.1:3000:3000", "127.0.0.1:8000:8000"}
    found = options_of([word.replace("$$", "$") for word in service["command"][1:]])
    assert found["host"] == "0.0.0.0" and found["recipe"] == recipes and found["capture"] == str(tmp_path / "50% $traffic")
    assert service["environment"]["PGPASSWORD"].startswith("${MILLRACE_POSTGRES_PASSWORD:")  # as it is, whatever its letters
    assert set(service["depends_on"]) | set(compose["volumes"]) == {"postgres", "history"}
    assert service["deploy"]["resources"]["reservations"]["devices"][0]["driver"] == "nvidia"


def test_the_compose_file_is_read_by_a_parser_of_the_specification(recipes, tmp_path):
    compose_spec = pytest.importorskip("compose_spec", reason="compose-spec, a parser of compose files, is not installed")
    write_deployment(tmp_path / "deploy", settings(recipes, tmp_path), "1.2.3", gpus=True)
    text = (tmp_path / "deploy" / "compose.yaml").read_text()
    read = compose_spec.PyCompose.from_yaml(text)
    read.validate()
    assert set(read.service_names()) == {"millrace", "postgres"}
    for right, wrong in (
        ("depends_on:", "dependson:"),
        ("condition: service_healthy", "condition: healthy"),
        ("start_period: 180s", "start_period: soon"),
    ):
        assert right in text
        with pytest.raises(ValueError, match=wrong.split(": ")[-1].strip(":")):
            compose_spec.PyCompose.from_yaml(text.replace(right, wrong)).validate()


def test_what_is_set_for_this_machine_is_set_in_the_container(recipes, tmp_path, monkeypatch):
    monkeypatch.setenv("MILLRACE_HOME", str(tmp_path / "history $1"))
    monkeypatch.setenv("MILLRACE_DEVICES", "cuda:0,cuda:1")
    write_deployment(tmp_path / "deploy", settings(recipes, tmp_path), "1.2.3")
    service = yaml.safe_load((tmp_path / "deploy" / "compose.yaml").read_text())["services"]["millrace"]
    assert service["environment"]["MILLRACE_DEVICES"] == "cuda:0,cuda:1"
    assert (
        service["environment"]["MILLRACE_HOME"]
        == str(tmp_path / "history $$1")
        in {each["source"] for each in service["volumes"]}
    )


def test_no_secret_is_written(recipes, tmp_path, monkeypatch):
    monkeypatch.setenv("MILLRACE_POSTGRES", "postgresql://millrace:SECRET@db/millrace")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "SECRET")
    for path in write_deployment(tmp_path / "deploy", settings(recipes, tmp_path), "1.2.3"):
        assert "SECRET\n" not in path.read_text() and "SECRET@" not in path.read_text() and "=SECRET" not in path.read_text()


def test_the_secrets_that_recipes_name_are_listed(recipes, tmp_path):
    recipes[0].write_text(
        recipes[0].read_text() + "alerts: {slack: {url_env: SLACK_URL}}\n"
        "curation: {judge: {base_url: http://localhost:1/v1, model: judge, api_key_env: JUDGE_KEY}}\n"
    )
    write_deployment(tmp_path / "deploy", settings(recipes, tmp_path), "1.2.3")
    assert "\n#JUDGE_KEY=\n#SLACK_URL=\n" in (tmp_path / "deploy" / "millrace.env").read_text()
    write_deployment(tmp_path / "deploy", settings(recipes[1:], tmp_path, serve=(WorkloadServer("club", 8000),)), "1.2.3")
    assert "Named by the recipes" not in (tmp_path / "deploy" / "millrace.env").read_text()


def test_the_readme_has_the_whole_command(recipes, tmp_path):
    folder = tmp_path / "with spaces"
    write_deployment(tmp_path / "deploy", settings(recipes, folder), "1.2.3", gpus=True)
    quoted = (tmp_path / "deploy" / "README.md").read_text().split("`")
    typed = next(shlex.split(text) for text in quoted if text.startswith("millrace deploy "))
    assert typed[2] == str(tmp_path / "deploy") and typed[-1] == "--gpus"
    found = options_of(typed[3:-1])
    assert found["recipe"] == recipes and found["lake"] == str(folder / "lake") and found["serve"] == ["shop:8000"]
    assert any(
        shlex.split(text)[1:] == ["up", "--check", "--lake", str(folder / "lake")] for text in quoted if "--check" in text
    )


def test_the_files_are_written_again_and_bad_input_writes_nothing(recipes, tmp_path):
    folder = tmp_path / "deploy"
    with pytest.raises(UiError, match="needs the recipes"):
        write_deployment(folder, UpSettings(), "1")
    with pytest.raises(UiError, match="--capture needs something"):
        write_deployment(folder, settings(recipes, tmp_path, serve=()), "1")
    with pytest.raises(UiError, match="port 3000 is asked for twice"):
        write_deployment(folder, settings(recipes, tmp_path, serve=(WorkloadServer("shop", 3000),)), "1")
    with pytest.raises(
        UiError, match="--serve other: neither the recipes nor the lake have this workload; there are club, shop"
    ):
        write_deployment(folder, settings(recipes, tmp_path, serve=(WorkloadServer("other", 8000),)), "1")
    assert not folder.exists()
    first = [path.read_text() for path in write_deployment(folder, settings(recipes, tmp_path), "1")]
    assert [path.read_text() for path in write_deployment(folder, settings(recipes, tmp_path), "1")] == first


def test_words_of_systemd():
    expected = ["plain/word", '"two words"', '"50%%"', '"$$HOME"', '"a\\"b"', '"a\\\\b"', '""']
    assert [systemd_word(word) for word in ("plain/word", "two words", "50%", "$HOME", 'a"b', "a\\b", "")] == expected
    assert systemd_assignment("A=$1 %") == '"A=$1 %%"'
    with pytest.raises(UiError, match="control character"):
        systemd_text("a\nb")
