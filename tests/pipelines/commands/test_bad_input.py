"""Wrong input, as a person would meet it: one sentence that names the thing, an exit code, nothing half-written."""

import json
import shutil

import pytest
from safetensors import safe_open
from safetensors.torch import save_file

from resources.artefacts.registry import Registry
from resources.lake.lake import LakeLayout
from tests.logged import pair

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("bad input")]

RECIPE = "workload: shop\nbase_model: tiny\nsources:\n  gateway: {uri: logs}\nlast_day: 2026-06-02\n"


def refused(cli, *words, code=2):
    done = cli(*words, check=code)
    assert "Traceback" not in done.stderr + done.stdout
    assert done.stderr.startswith("millrace: ")
    return " ".join(done.stderr.split())


def write(home, text=RECIPE):
    path = home / "shop.yaml"
    path.write_text(text)
    return path


def test_an_unknown_key_is_refused_before_anything_is_made(cli, tmp_path):
    recipe = write(tmp_path, RECIPE + "studnet: {layers: 7}\n")
    said = refused(cli, "run", recipe, "--lake", tmp_path / "lake")
    assert "studnet" in said and "student" in said
    assert not (tmp_path / "lake").exists()


def test_every_problem_of_a_recipe_is_said_at_once_with_its_line(cli, tmp_path):
    recipe = write(tmp_path, RECIPE + "first_day: 2026-02-30\nsft: {rank: 8}\nstudent: null\n")
    lines = cli("run", recipe, "--lake", tmp_path / "lake", check=2).stderr.splitlines()
    assert lines == [
        f"millrace: {recipe} line 6: first_day: there is no day 2026-02-30; a date is a year, a month and a day, such as 2026-06-01",
        f"{recipe} line 7: sft.rank: there is no such key; did you mean sft.lora.rank?",
        f"{recipe} line 8: student: is empty; write `student: {{enabled: false}}` to switch it off, or leave the key out to take "
        "its defaults",
    ]


def test_a_taskset_that_cannot_be_read_leaves_no_file(cli, tmp_path):
    output = tmp_path / "tasks.jsonl"
    assert "No module named 'verifiers'" in refused(cli, "taskset", "reverse-text", "--output", output, code=1)
    for env in ("{", "[]", '{"taskset": 3}'):
        assert "--env is a JSON object, such as" in refused(cli, "taskset", "reverse-text", "--output", output, "--env", env)
    assert not output.exists()


def test_an_empty_log_prefix_is_named(cli, tmp_path):
    (tmp_path / "logs").mkdir()
    said = refused(cli, "run", write(tmp_path), "--lake", tmp_path / "lake")
    assert "gateway" in said and "no log objects under" in said


def test_a_lake_that_another_version_wrote_is_left_alone(cli, tmp_path):
    (tmp_path / "lake").mkdir()
    (tmp_path / "lake" / "lake.json").write_text('{"layout_version": 7}')
    (tmp_path / "logs").mkdir()
    said = refused(cli, "run", write(tmp_path), "--lake", tmp_path / "lake")
    assert "layout version 7" in said
    assert [child.name for child in (tmp_path / "lake").iterdir()] == ["lake.json"]


def test_a_selection_that_names_nothing(cli, tmp_path):
    (tmp_path / "logs").mkdir()
    said = refused(cli, "run", write(tmp_path), "--lake", tmp_path / "lake", "--select", "sft_modell")
    assert "sft_modell" in said and "sft_model" in said


def test_a_file_that_is_not_what_it_says_is_quarantined_and_the_rest_is_read(cli, tmp_path):
    logs = tmp_path / "logs" / "dt=2026-06-01"
    logs.mkdir(parents=True)
    line = pair(0, "What is a mill race, and what is it for?", "A channel to a wheel.")
    (logs / "good.jsonl").write_text(json.dumps(line) + "\n")
    (logs / "junk.jsonl.gz").write_bytes(bytes(range(256)) * 20)
    (logs / "picture.jsonl").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(range(256)))
    cli("run", write(tmp_path), "--lake", tmp_path / "lake", "--select", "cleaned_interactions", "--select", "interactions")
    said = "select (select count(*) from interactions) kept, (select count(distinct source_uri) from quarantine) bad"
    found = json.loads(cli("sql", said, "--lake", tmp_path / "lake", "--format", "json").stdout)
    assert found == [{"kept": 1, "bad": 2}]


@pytest.mark.slow
def test_user_ids_hashed_without_a_key_are_said_once(cli, tmp_path, monkeypatch):
    def said(user, key=None):
        logs = tmp_path / "logs" / "dt=2026-06-01"
        logs.mkdir(parents=True, exist_ok=True)
        lines = [pair(25 * number, "What is a mill race?", "A channel.") for number in range(2)]  # of two days
        for line in lines:
            line["request"] |= user
        (logs / "a.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        monkeypatch.delenv("MILLRACE_USER_HASH_KEY", raising=False)
        if key:
            monkeypatch.setenv("MILLRACE_USER_HASH_KEY", key)
        lake = tmp_path / f"lake{len(user)}{key}"
        done = cli("run", write(tmp_path), "--lake", lake, "--select", "interactions", "--select", "feedback")
        message = "without a key and can be guessed: set MILLRACE_USER_HASH_KEY"
        return " ".join((done.stdout + done.stderr).split()).count(message)

    assert [said({"user": "ann"}), said({"user": "ann"}, "secret"), said({})] == [1, 0, 0]


def test_a_base_model_with_a_tensor_missing_is_named_and_makes_no_artefact(cli, toy, tmp_path):
    registry = Registry(LakeLayout.open(toy.lake), toy.workload)
    broken = tmp_path / "broken"
    shutil.copytree(registry.directory(registry.current("model", "base_model")), broken)
    with safe_open(broken / "model.safetensors", "pt") as weights:
        tensors = {name: weights.get_tensor(name) for name in weights.keys()}  # noqa: SIM118
    gone = next(name for name in tensors if "q_proj" in name)
    del tensors[gone]
    save_file(tensors, broken / "model.safetensors", metadata={"format": "pt"})
    recipe = write(tmp_path, RECIPE.replace("base_model: tiny", "base_model: ./broken"))
    said = refused(cli, "run", recipe, "--lake", tmp_path / "lake", "--select", "base_model", code=1)
    assert gone in said and "broken" in said
    assert not list((tmp_path / "lake" / "models").rglob("manifest.json"))


@pytest.mark.parametrize("words", [["run"], ["approve"], ["verify"], ["sql"], ["no-such-command"]])
def test_missing_words_are_misuse(cli, words):
    assert cli(*words, check=2).stderr


def test_every_command_explains_itself(cli):
    for command in ("demo", "run", "sql", "lineage", "why", "verify", "approve", "withdraw", "rollback", "ui"):
        said = cli(command, "--help").stdout
        assert "--lake" in said
