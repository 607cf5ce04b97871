"""`millrace check`: what is right, what is wrong and what mends it, one line each; never a traceback, nothing written."""

import json
import os
import re
import shutil
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import numpy as np
import pytest
import yaml
from rich.console import Console
from safetensors.numpy import save_file

from pipelines.checks import base_model
from pipelines.checks import forecast as forecasting
from pipelines.checks.base_model import check_base_model
from pipelines.checks.check_recipe import check
from pipelines.checks.finding import CheckStep, ok, run_checks
from pipelines.checks.place import bytes_needed
from pipelines.checks.worth import check_room
from pipelines.contract.base_choice import Base
from pipelines.contract.recipe import load_recipe
from pipelines.contract.text import RecipeProblemsError
from pipelines.planning.stage_times import Speed
from pipelines.running.outcome import Outcome
from resources.inspecting.overview import first_look
from resources.lake.lake import LakeLayout
from resources.stages.table import STAGES
from tests.command import PROJECT
from tests.hub_of_models import hub_of_models
from tests.logged import pair
from tests.resources.inspecting.test_survey import ITEM, PAIR, SEED, THUMB, put


@pytest.fixture(autouse=True)
def named_person(monkeypatch):
    monkeypatch.setenv("MILLRACE_USER", "ana")
    monkeypatch.setenv("MILLRACE_USER_HASH_KEY", "k")


def write(home: Path, **more) -> Path:
    put(home / "gateway" / "2026-06-01.jsonl", PAIR)
    put(home / "gateway" / "2026-06-02.jsonl", PAIR)
    put(home / "thumbs.jsonl", THUMB)
    content = {
        "workload": "helper",
        "base_model": "tiny",
        "sources": {"gateway": {"uri": "gateway"}, "thumbs": {"uri": "thumbs.jsonl"}},
        **more,
    }
    path = home / "recipe.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


def found(home: Path, **more) -> dict[str, list[tuple[str, str]]]:
    """Findings by check: (state, message and remedy)."""
    report = check(write(home, **more), home / "lake", plan=False)
    told: dict[str, list[tuple[str, str]]] = {}
    for finding in report.findings:
        assert finding.message and (finding.remedy or finding.state == "ok")
        told.setdefault(finding.check, []).append((finding.state, f"{finding.message} -> {finding.remedy}"))
    return told


def bad(told: dict[str, list[tuple[str, str]]], state: str = "problem") -> dict[str, str]:
    return {name: said for name, findings in told.items() for how, said in findings if how == state}


def test_a_recipe_without_faults_has_no_problem_and_nothing_is_written(tmp_path):
    put(tmp_path / "suite.jsonl", ITEM)
    put(tmp_path / "seeds.jsonl", SEED)
    told = found(tmp_path, seeds={"made": {"uri": "seeds.jsonl"}}, evals={"suite": {"uri": "suite.jsonl"}})
    assert bad(told) == {} and bad(told, "warning") == {}
    checked = "source gateway, source thumbs, seed made, eval suite, days, feedback, base model, lake, disk, packages, approval"
    assert set(checked.split(", ")) <= set(told)
    assert "2 objects, 2026-06-01 to 2026-06-02; first records are openai_pairs" in told["source gateway"][0][1]
    assert not (tmp_path / "lake").exists()


def test_every_input_that_is_wrong_is_a_problem_of_its_own(tmp_path):
    (tmp_path / "broken.jsonl").write_text("not json\n")
    put(tmp_path / "no-suite.jsonl", {"x": 1})
    put(tmp_path / "sums.jsonl", {"prompt": "2 + 2", "answer": "many"})
    told = found(
        tmp_path,
        sources={
            "gone": {"uri": "nowhere"},
            "broken": {"uri": "broken.jsonl"},
            "other": {"uri": "gateway", "format": "litellm"},
            "good": {"uri": "thumbs.jsonl"},
        },
        evals={"suite": {"uri": "no-suite.jsonl"}, "lost": {"uri": "lost.jsonl"}},
        datasets={"rl_prompts": {"tasks": {"sums": {"uri": "sums.jsonl", "task": "number"}}}},
    )
    wrong = bad(told)
    assert set(wrong) == {"source gone", "source broken", "source other", "sources", "eval suite", "eval lost", "tasks sums"}
    assert "sums.jsonl line 1: task number needs an answer that is a number" in wrong["tasks sums"]
    assert "nothing lies under" in wrong["source gone"]
    assert "no line of the file is a JSON object" in wrong["source broken"]
    assert "leave format: litellm out" in wrong["source other"]


def test_broken_lines_among_the_first_records_are_counted(tmp_path):
    put(tmp_path / "broken.jsonl", PAIR, PAIR)
    with (tmp_path / "broken.jsonl").open("a") as file:
        file.write('{"request": {"model"\n\n[1]\n' + json.dumps(PAIR) + "\n")
    told = bad(found(tmp_path, sources={"app": {"uri": "broken.jsonl"}}), "warning")
    assert told["source app"].startswith("2 lines of the first 5 are no JSON object; the first is ")
    assert "broken.jsonl:3 -> they go to quarantine" in told["source app"]


def test_one_object_in_two_sources(tmp_path):
    wrong = bad(found(tmp_path, sources={"all": {"uri": "gateway"}, "one": {"uri": "gateway/2026-06-02.jsonl"}}))
    assert "all and one both hold" in wrong["sources"]


@pytest.mark.parametrize(("days", "state"), [
    ({"first_day": "2026-06-01"}, "ok"),
    ({"last_day": "2026-06-01"}, "warning"),
    ({"first_day": "2026-07-01"}, "problem"),
    ({"first_day": "2026-05-01", "last_day": "2026-05-02"}, "problem"),
])  # fmt: skip
def test_days_of_the_recipe_against_days_of_the_logs(tmp_path, days, state):
    assert found(tmp_path, **days)["days"][0][0] == state


@pytest.mark.parametrize(("named", "recipe", "said"), [
    ({"last_day": "2025-06-01"}, {}, "last_day 2025-06-01 is before the first day of the traffic, 2026-06-01"),
    ({"first_day": "2026-06-02"}, {"last_day": "2026-06-01"}, "first_day 2026-06-02 is after the last day of the traffic, 2026-06-01"),
    ({"last_day": "2026-06-01", "first_day": "2026-06-01"}, {}, None),
])  # fmt: skip
def test_a_named_dataset_whose_days_hold_no_traffic(tmp_path, named, recipe, said):
    told = [
        line for _, line in found(tmp_path, datasets={"named": {"early": named}}, **recipe)["days"] if "named.early" in line
    ]
    assert len(told) == (said is not None) and (said is None or said in told[0])


def test_room_for_prompt_and_answer_in_the_positions(tmp_path):
    assert "0 of 2 rows" in found(tmp_path)["room"][0][1]
    full = found(tmp_path, evaluation={"max_new_tokens": 2_048})
    assert "evaluation.max_new_tokens 2,048 leave no room for a prompt in the base model's 2,048 positions" in bad(full)["room"]
    short = load_recipe(write(tmp_path, evaluation={"max_new_tokens": 8}, speculator={"enabled": False}))
    [finding] = check_room(short, [40, 33], 32)
    assert finding.state == "warning" and "about 2 of 2 rows are longer than the base model's 32" in finding.message
    assert check_room(short, [40, 33], None) == []  # the model names no number


def test_feedback_that_is_asked_for_and_not_there(tmp_path):
    told = found(tmp_path, sources={"gateway": {"uri": "gateway"}}, curation={"feedback": {"keep_thumbs_up": True}})
    assert "no source seems to hold feedback" in bad(told, "warning")["feedback"]


def test_only_feedback_is_no_source_of_anything(tmp_path):
    assert "only feedback" in bad(found(tmp_path, sources={"thumbs": {"uri": "thumbs.jsonl"}}))["sources"]
    put(tmp_path / "odd.jsonl", {"speaker": "x"})
    told = bad(found(tmp_path, sources={"odd": {"uri": "odd.jsonl"}}))
    assert "no known log format" in told["source odd"] and "sources" not in told


def test_user_ids_without_a_key(tmp_path, monkeypatch):
    monkeypatch.delenv("MILLRACE_USER_HASH_KEY")
    assert "MILLRACE_USER_HASH_KEY" in bad(found(tmp_path), "warning")["user ids"]
    put(tmp_path / "own.jsonl", PAIR | {"actor": "ann", "request": {**PAIR["request"], "user": ""}})
    sources = {name: {"uri": "own.jsonl"} | more for name, more in (("own", {"fields": {"user": "actor"}}), ("other", {}))}
    assert bad(found(tmp_path, sources=sources), "warning")["user ids"].startswith("own may hold user ids")


@pytest.mark.parametrize(("workloads", "warned"), [({}, True), ({"shop": "shop"}, False), ({"shop": "helper"}, False)])
def test_a_source_that_mixes_workloads(tmp_path, workloads, warned):
    put(tmp_path / "mixed.jsonl", PAIR | {"workload_id": "helper"}, *[PAIR | {"workload_id": "shop"}] * 2)
    told = bad(found(tmp_path, sources={"app": {"uri": "mixed.jsonl", "workloads": workloads}}), "warning")
    assert ("workloads" in told) == warned
    if warned:
        assert "source app name 2 workloads, helper (1), shop (2), and all of them become rows of helper" in told["workloads"]
        assert "sources.app.workloads: {shop: shop} keeps them apart, and {shop: helper}" in told["workloads"]


def test_nobody_to_approve(tmp_path, monkeypatch):
    monkeypatch.setenv("MILLRACE_USER", "a\nb")
    assert "MILLRACE_USER" in bad(found(tmp_path), "warning")["approval"]


def test_who_approves_and_who_signs(tmp_path, monkeypatch):
    told = found(tmp_path, release={"approval": "two_people", "signed": True})
    assert told["approval"] == [("ok", "two people have to approve; here ana would (MILLRACE_USER) -> ")]
    assert "MILLRACE_SIGNING_KEY and MILLRACE_TRUSTED_KEYS are not set" in bad(told, "warning")["signature"]
    assert "approval" not in found(tmp_path, release={"enabled": False})
    told = found(tmp_path, release={"approval": "automatic", "signed": True})
    assert "an automatic approval would fail" in bad(told)["signature"]
    monkeypatch.setenv("MILLRACE_TRUSTED_KEYS", str(tmp_path / "gone.pub"))
    assert "cannot be read" in bad(found(tmp_path, release={"signed": True}))["signature"]


def test_a_device_that_leaves_activations_in_16_bits(tmp_path):
    def serving(device):
        return found(tmp_path, quantize={"scheme": "fp8"}, release={"serve_on": f"vllm/{device}"})["serving"][0][:2]

    assert serving("h100") == ("ok", "vllm/h100 loads scheme fp8 -> ")
    state, message = serving("a100")
    assert state == "warning" and "leaves activations in 16 bits" in message


def test_a_student_deeper_than_its_teacher_from_the_hub(tmp_path):
    """The recipe itself refuses it for tiny and for a directory; what lies in the hub's cache is known only here."""
    recipe = load_recipe(write(tmp_path, base_model="owner/model", student={"layers": 12}))
    [finding] = base_model._depth(recipe, Base("x", "directory", {"num_hidden_layers": 10}))
    assert finding.state == "problem" and "its teacher has 10" in finding.message
    assert "at most 10" in finding.remedy
    as_deep = load_recipe(write(tmp_path, base_model="owner/model", student={"layers": 10}))
    [finding] = base_model._depth(as_deep, Base("x", "directory", {"num_hidden_layers": 10}))
    assert finding.state == "ok"


def test_token_ids_and_a_tokenizer_made_on_the_spot(tmp_path):
    put(tmp_path / "ids.jsonl", {"prompt": [1, 2, 3], "answer": [4, 5]})
    assert "tokenizer of tiny" in bad(found(tmp_path, sources={"ids": {"uri": "ids.jsonl"}}))["token ids"]


@pytest.mark.parametrize("make", ["file", "other", "layout"])
def test_places_that_are_no_lake(tmp_path, make):
    place = tmp_path / "lake"
    if make == "file":
        place.write_text("")
    else:
        place.mkdir()
        (place / ("x" if make == "other" else "lake.json")).write_text('{"layout_version": 99}')
    assert "lake" in bad(found(tmp_path))


def test_another_process_that_reads_into_the_lake(tmp_path):
    from resources.reading.ingestion import ingest_lock

    with ingest_lock(LakeLayout.open(tmp_path / "lake")):
        told = found(tmp_path)
    assert f"process {os.getpid()}" in bad(told, "warning")["lake"]


def test_disk_by_what_needs_it(tmp_path, monkeypatch):
    recipe = load_recipe(write(tmp_path, base_model="owner/model"))
    config = {"num_hidden_layers": 32, "hidden_size": 4096, "vocab_size": 128_256, "dtype": "bfloat16"}
    parts = bytes_needed(recipe, Base("x", "directory", config, 16_000_000_000), {})
    assert parts["sft_model"] == 16_000_000_000 and parts["checkpoints"] == 2 * 8_000_000_000 * 12
    monkeypatch.setattr("shutil.disk_usage", lambda place: type("Usage", (), {"free": 1_000})())
    assert "free" in bad(found(tmp_path))["disk"]


class _Server(BaseHTTPRequestHandler):
    def do_GET(self):
        allowed = self.headers.get("Authorization") == "Bearer right"
        self.send_response(200 if allowed else 401)
        self.end_headers()
        self.wfile.write(json.dumps({"data": [{"id": "judge"}]}).encode())

    def log_message(self, *_):
        pass


def test_the_judge_is_asked_for_its_models(tmp_path, monkeypatch):
    server = HTTPServer(("127.0.0.1", 0), _Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}/v1"

    def told(key=None, model="judge", base_url=address):
        if key is not None:
            monkeypatch.setenv("JUDGE_KEY", key)
        return found(tmp_path, curation={"judge": {"base_url": base_url, "model": model, "api_key_env": "JUDGE_KEY"}})

    try:
        assert "the environment variable JUDGE_KEY holds no key" in bad(told())["judge"]
        assert "refuses the key" in bad(told("wrong"))["judge"] and "wrong" not in str(told())
        assert told("right")["judge"][0][0] == "ok"
        assert "serves judge, not another" in bad(told(model="another"), "warning")["judge"]
    finally:
        server.shutdown()
        server.server_close()
    assert "does not answer" in bad(told())["judge"]


def test_a_check_that_fails_or_hangs_is_a_line(tmp_path):
    def fails():
        raise ZeroDivisionError("by\nnothing")

    findings = run_checks(
        [
            CheckStep("one", fails),
            CheckStep("two", lambda: time.sleep(5) or []),
            CheckStep("three", lambda: [ok("three", "x")]),
        ],
        seconds=0.2,
    )
    assert [finding.state for finding in findings] == ["warning", "warning", "ok"]
    assert findings[0].message == "could not be checked: ZeroDivisionError: by nothing"
    assert findings[1].message == "could not be checked: no answer within 0.2 s"


def test_a_recipe_that_cannot_be_read_is_refused_with_all_its_faults(tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text("workload: A B\nbase_model: tiny\nsources: {}\n")
    with pytest.raises(RecipeProblemsError) as said:
        check(path, tmp_path / "lake")
    assert len(str(said.value).splitlines()) == 2


@pytest.fixture
def house(shared, tmp_path):
    shutil.copytree(shared / "models" / "house", tmp_path / "house")
    for path in (tmp_path / "house").iterdir():
        path.chmod(0o644)
    (tmp_path / "house").chmod(0o755)
    return tmp_path / "house"


def model_findings(tmp_path, house, **more):
    recipe = load_recipe(write(tmp_path, base_model=str(house), **more))
    told: dict[tuple[str, str], str] = {}
    for finding in check_base_model(recipe, 0.5, True):
        key = (finding.check, finding.state)
        told[key] = f"{told[key]}; {finding.message}" if key in told else finding.message
    return told


@pytest.mark.parametrize(("settings", "check", "said"), [
    ({"sft": {"method": "lora", "lora": {"targets": ["q_proj", "nonsense"]}}}, "adapter", "'nonsense' matches no layer"),
    ({"sft": {"method": "lora", "lora": {"targets": ["experts"]}}}, "adapter", "'experts' matches no layer"),
    ({"preference": {"method": "lora", "lora": {"targets": ["nonsense"]}}, "datasets": {"preference": {}}}, "adapter", "'nonsense' matches no layer"),
    ({"speculator": {"draft_vocab_size": 100_000}}, "architecture", "draft_vocab_size is 100,000"),
    ({"student": {"heads": 3}}, "student", "heads share keys and values in groups of"),
    ({"student": {"mlp_width": 100_000}}, "student", "student.mlp_width is 100000, and the teacher has"),
    ({"student": {"enabled": False}, "quantize": {"scheme": "auto", "budget": 0.1}}, "quantize", "no choice of schemes meets the budget 0.1"),
])  # fmt: skip
def test_settings_that_the_model_cannot_have_are_found_before_the_run(tmp_path, house, settings, check, said):
    assert said in model_findings(tmp_path, house, **settings)[check, "problem"]


@pytest.mark.parametrize(("sections", "said"), [
    ({"sft": {"max_length": 1_000_000}}, "ends the training"),
    ({"sft": {"max_length": 64}, "preference": {"max_length": 1_000_000}, "speculator": {"max_length": 64}}, "is left out"),
    ({"sft": {"max_length": 1_000_000}, "preference": {"max_length": 1_000_000}}, "ends the training"),
])  # fmt: skip
def test_what_happens_to_a_row_beyond_the_context_is_said(tmp_path, house, sections, said):
    datasets = {"sft": {}, "preference": {}} if "preference" in sections else {"sft": {}}
    recipe = load_recipe(write(tmp_path, base_model=str(house), datasets=datasets, student={"enabled": False}, **sections))
    [found] = [each for each in check_base_model(recipe, 0.5, True) if each.check == "context"]
    assert found.state == "warning" and found.remedy.endswith(f"a longer row {said}")


def test_targets_that_the_model_has_are_said(tmp_path, house):
    settings = {"sft": {"method": "lora", "lora": {"targets": ["q_proj", "mlp.up_proj"]}}}
    assert "match layers" in model_findings(tmp_path, house, **settings)["adapter", "ok"]


@pytest.mark.parametrize("name", [path.stem for path in (PROJECT / "recipes").glob("*.yaml")])
def test_every_check_of_the_base_model_can_be_made_for_each_recipe_of_the_project(tmp_path, house, name):
    file = shutil.copytree(PROJECT / "recipes", tmp_path / "recipes") / f"{name}.yaml"
    file.write_text(re.sub(r"(?m)^base_model: \S+", f"base_model: {house}", file.read_text()))  # some name what is fetched
    recipe = load_recipe(file)
    assert [each.message for each in check_base_model(recipe, 0.5, True) if "could not be checked" in each.message] == []


def test_adapters_without_settings_of_their_own_can_be_checked(tmp_path, house):
    told = model_findings(tmp_path, house, sft={"method": "lora"})
    assert "could not be checked" not in " ".join(told.values()) and ("adapter", "problem") not in told


def test_a_suite_that_nobody_judges_is_said(tmp_path):
    from pipelines.checks.environment import check_endpoints

    evals = {"style": {"uri": "./style.jsonl", "task": "judge"}}
    [finding] = check_endpoints(load_recipe(write(tmp_path, evals=evals)))
    assert finding.state == "warning" and "evals.style" in finding.message and "evaluation.tasks.judge" in finding.remedy


def test_a_whole_model_is_looked_at_from_tensors_to_template(tmp_path, house):
    told = model_findings(tmp_path, house)
    assert {("base model", "ok"), ("architecture", "ok"), ("chat template", "ok")} <= set(told)
    assert not any(state == "problem" for _, state in told), told


@pytest.mark.parametrize(("spoil", "said"), [
    ("cut", "cut short|fill|bytes"),
    ("tokenizer", "tokenizer"),
    ("template", "no chat template"),
    ("layers", "is missing"),
    ("kind", "influence each other|does not support packed documents|transformers builds no"),
    ("quantized", "is quantized by gptq, which is not read here"),
])  # fmt: skip
def test_what_is_wrong_with_a_model_is_named(tmp_path, house, spoil, said):
    config = json.loads((house / "config.json").read_text())
    if spoil == "cut":
        weights = house / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-1000])
    elif spoil in ("tokenizer", "template"):
        (house / ("tokenizer.json" if spoil == "tokenizer" else "chat_template.jinja")).unlink()
    else:
        change = {
            "layers": {"num_hidden_layers": config["num_hidden_layers"] + 1},
            "kind": {"model_type": "mamba"},
            "quantized": {"quantization_config": {"quant_method": "gptq"}},
        }[spoil]
        (house / "config.json").write_text(json.dumps({**config, **change}))
    told = model_findings(tmp_path, house)
    wrong = " ".join(message for (_, state), message in told.items() if state == "problem")
    assert any(word in wrong for word in said.split("|")), told


def test_ids_beyond_the_vocabulary_and_days_far_away_are_named(tmp_path, house):
    from pipelines.checks.inputs import check_source, check_together

    times = (946728000, 1780300800, 1780300900)
    put(tmp_path / "far.jsonl", *(pair(number, "a", "b", timestamp=at) for number, at in enumerate(times)))
    (tmp_path / "tokens.jsonl").write_text('{"token_ids": [1, 2, 3], "labels": [-100, 2, 3]}\n{"token_ids": [1, 99999, 3]}\n')
    given = {"sources": {"app": {"uri": "far.jsonl"}}, "seeds": {"tok": {"uri": "tokens.jsonl"}}}
    recipe, looks = load_recipe(write(tmp_path, base_model=str(house), **given)), {}
    check_source("source", "app", recipe.sources["app"], looks)
    check_source("seed", "tok", recipe.seeds["tok"], looks)
    told = {finding.check: finding for finding in check_together(recipe, looks) if finding.state != "ok"}
    assert "1 record of 2000-01-01 lies more than a year from the others" in told["days"].message
    assert told["token ids"].state == "problem"
    assert "tok holds the token id 99999, and the base model's ids are 0 to" in told["token ids"].message


def test_a_model_with_named_templates_only_has_its_templates(tmp_path, house):
    template = (house / "chat_template.jinja").read_text()
    (house / "chat_template.jinja").unlink()
    config = json.loads((house / "tokenizer_config.json").read_text())
    named = [{"name": "default", "template": template}, {"name": "tool_use", "template": template}]
    (house / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": named}))
    told = model_findings(tmp_path, house)
    assert ("chat template", "ok") in told and not any(state == "problem" for _, state in told), told


def test_a_template_that_refuses_a_system_prompt_or_loses_tools(tmp_path, house):
    (house / "chat_template.jinja").write_text(
        "{% for message in messages %}{% if message.role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
        "<|im_start|>{{ message.role }}\n{% if message.role == 'assistant' %}{% generation %}{{ message.content }}<|im_end|>"
        "{% endgeneration %}{% else %}{{ message.content }}<|im_end|>{% endif %}\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    told = model_findings(tmp_path, house)
    expected = "such rows are left out: a system prompt: the chat template refuses the row (no system)"
    assert expected in told[("chat template", "problem")]
    expected = "such rows are left out: tools and a call: the chat template leaves out the tool calls"
    assert expected in told[("chat template", "warning")]


def test_a_hub_id_that_cannot_be_fetched_here(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    recipe = load_recipe(write(tmp_path, base_model="nobody-here/nothing-there"))
    [finding] = check_base_model(recipe, 0.0, False)
    assert finding.state in ("problem", "warning") and "nobody-here/nothing-there" in finding.message and finding.remedy


def test_a_hub_that_cannot_be_reached_is_a_sentence_whatever_library_says_so(tmp_path, monkeypatch):
    from huggingface_hub import HfApi

    class ConnectError(Exception):
        """As of httpx2, which is no OSError."""

    def away(*_, **__):
        raise ConnectError("name resolution")

    monkeypatch.setattr(HfApi, "model_info", away)
    monkeypatch.setattr(base_model.hub, "is_offline", lambda: False)
    [finding] = check_base_model(load_recipe(write(tmp_path, base_model="nobody-here/nothing-there")), 0.0, False)
    assert finding.state == "warning" and "the Hugging Face Hub cannot be reached (ConnectError)" in finding.message


def test_a_hub_id_is_checked_at_the_revision_of_the_recipe(tmp_path, house, monkeypatch):
    from huggingface_hub import snapshot_download

    with hub_of_models() as hub:
        hub.used_by(monkeypatch, tmp_path / "cache")
        first = hub.commit("company/base", {path.name: path.read_bytes() for path in house.iterdir()})
        hub.commit("company/base", {"config.json": b"{}"})
        told = check_base_model(load_recipe(write(tmp_path, base_model="company/base", base_revision=first)), 0.0, False)
        expected = [("ok", f"company/base at revision {first} is on the Hugging Face Hub; the first run fetches it")]
        assert [(each.state, each.message) for each in told] == expected
        [missing] = check_base_model(load_recipe(write(tmp_path, base_model="company/base", base_revision="v9")), 0.0, False)
        assert missing.state == "problem" and missing.message.endswith("no revision v9 of company/base")
        snapshot_download("company/base", revision=first)
        recipe = load_recipe(write(tmp_path, base_model="company/base", base_revision=first))
        told = {finding.check: finding.state for finding in check_base_model(recipe, 0.0, False)}
        assert told["base model"] == told["architecture"] == told["chat template"] == "ok"


@pytest.mark.parametrize(("code", "out", "err", "state", "said"), [
    (0, '{"method": "lora", "memory_gib": {"total": 12.34}, "device_gib": 79.2}', "", "ok", "LoRA, rows of 4,096 tokens: fits in 79 GiB"),
    (1, "", "millrace: nothing fits: 90 GiB are needed", "problem", "nothing fits: 90 GiB are needed"),
    (2, "", "millrace: base_model x is an id", "warning", "cannot be planned: base_model x is an id"),
])  # fmt: skip
def test_memory_is_what_the_plan_says(tmp_path, monkeypatch, code, out, err, state, said):
    from collections import Counter
    from subprocess import CompletedProcess

    from pipelines.checks import environment

    recipe = load_recipe(write(tmp_path, student={"enabled": False}))
    monkeypatch.setattr(environment, "accelerators", lambda: Counter({"H100": 2}))
    monkeypatch.setattr(environment, "_torch_without_accelerators", lambda: False)
    monkeypatch.setattr(environment.subprocess, "run", lambda *_, **__: CompletedProcess([], code, out, err))
    devices, memory = environment.check_devices(recipe, tmp_path / "recipe.yaml", 10, plan=True)
    assert devices.message == "2xH100" and (memory.state, memory.message) == (state, said)
    monkeypatch.setattr(environment, "_torch_without_accelerators", lambda: True)
    assert environment.check_devices(recipe, tmp_path / "recipe.yaml", 10, plan=False)[0].state == "problem"


def test_a_large_model_on_a_cpu_is_not_traced(tmp_path, monkeypatch):
    from collections import Counter

    from pipelines.checks import environment

    monkeypatch.setattr(environment, "accelerators", Counter)
    found = environment.check_devices(load_recipe(write(tmp_path)), tmp_path / "recipe.yaml", 8_000_000_000, plan=True)
    assert [finding.state for finding in found] == ["ok", "warning"] and "days" in found[1].message


@pytest.mark.parametrize(
    ("weights", "state", "said"), [(True, "ok", "merged into"), (False, "problem", "holds no adapter_model.safetensors")]
)
def test_an_adapter_is_checked_with_the_model_under_it(tmp_path, house, weights, state, said):
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "../house"}))
    if weights:
        save_file({"base_model.model.x.lora_A.weight": np.zeros((2, 2), "float32")}, adapter / "adapter_model.safetensors")
    told = model_findings(tmp_path, adapter)
    assert said in told["adapter", state]
    assert {("base model", "ok"), ("architecture", "ok"), ("chat template", "ok")} <= set(told)


def test_an_adapter_of_the_hub_whose_model_is_of_the_hub_too(tmp_path, house, monkeypatch):
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "owner/model"}))
    save_file({"base_model.model.x.lora_A.weight": np.zeros((2, 2), "float32")}, adapter / "adapter_model.safetensors")
    there = {("owner/tuned", "v2"): adapter, ("owner/model", None): house}
    monkeypatch.setattr(base_model, "_hub", lambda *asked: there[asked])
    recipe = load_recipe(write(tmp_path, base_model="owner/tuned", base_revision="v2"))
    told = {finding.check: finding for finding in check_base_model(recipe, 0.0, False)}
    assert told["adapter"].state == "ok" and str(house) in told["adapter"].message


def test_the_server_that_the_evaluation_starts_has_to_be_installed(tmp_path):
    assert "server" not in found(tmp_path)
    told = found(tmp_path, evaluation={"server": {"python": "/bin/false"}})
    assert told["server"] == [
        (
            "problem",
            "evaluation.server.python: /bin/false runs no Python that has vllm -> name the "
            "interpreter of an environment in which vllm is installed",
        )
    ]
    here = {"server": {"python": "/bin/true"}}
    assert found(tmp_path, evaluation=here)["server"] == [("ok", "the evaluation starts vllm with /bin/true -> ")]
    told = found(tmp_path, evaluation=here, release={"serve_on": "sglang/h100"})
    assert told["server"][0][1].startswith("the evaluation starts vllm, and release.serve_on is sglang/h100 -> set")


def test_the_server_that_rollouts_start_has_to_be_installed(tmp_path):
    rewarded = {"datasets": {"rl_prompts": {}}, "rft": {"grader": "verifier"}}
    assert "rollouts" not in found(tmp_path, **rewarded)
    rewarded["rft"] |= {"engine": "vllm", "server": {"python": "/bin/false"}}
    [(state, said)] = found(tmp_path, **rewarded)["rollouts"]
    assert state == "problem" and said.startswith("rft.server.python: /bin/false runs no Python that has vllm -> name the")
    rewarded["rft"]["server"] = {"python": "/bin/true"}
    assert found(tmp_path, **rewarded)["rollouts"] == [("ok", "rft starts vllm with /bin/true -> ")]


@pytest.fixture
def predicted(tmp_path, monkeypatch):
    """The forecast of a recipe on a machine of 50 GFLOP/s; devices: its accelerators."""

    def of(devices=(), looked=True, **more):
        recipe = load_recipe(write(tmp_path, **more))
        looks = {name: first_look(name, source) for name, source in recipe.sources.items()} if looked else {}
        monkeypatch.setattr(forecasting, "speed_of", lambda recipe, device=None: Speed(50.0, "float32", memory=MEMORY))
        monkeypatch.setattr(forecasting, "accelerators", lambda: Counter(devices))
        return forecasting.forecast(recipe, looks, tmp_path / "lake")

    return of


MEMORY = {"sft_model": 1.5e9, "evaluation_report": 1.2e9}


def printed(forecast, width):
    console = Console(record=True, width=width, force_terminal=True)
    forecasting.print_forecast(forecast, console)
    return console.export_text()


@pytest.mark.parametrize(("seconds", "is_said"), [(3_660.0, True), (30.0, False)])
def test_a_long_evaluation_says_how_it_is_made_cheaper(seconds, is_said):
    lines = [
        forecasting.StageForecast(name, each, each) for name, each in (("sft_model", 600.0), ("evaluation_report", seconds))
    ]
    text = " ".join(printed(forecasting.Forecast(lines, "for 2 records"), 120).split())
    assert (
        "evaluation_report takes 86% of the time. Cheaper, with wider intervals: lower evaluation.prompts" in text
    ) == is_said
    assert ("Cheaper" in text) == is_said


@pytest.mark.parametrize("width", [80, 120])
def test_time_memory_and_disk_of_each_stage_are_a_table(predicted, width):
    text = printed(predicted(), width)
    assert all(len(line) <= width for line in text.splitlines())
    [sft] = [line for line in text.splitlines() if line.startswith("sft_model")]
    assert re.search(r"sft_model +fine-tunes the base +\d+ (s|min|h).* GB +\d", sft), sft
    assert (
        "in all" in text and "for about 2 records" in text and "50 GFLOP/s in float32, measured here" in " ".join(text.split())
    )
    assert "money" not in text


def test_money_is_shown_where_its_price_is_known(predicted):
    text = printed(predicted(automation={"decide": {"price_per_device_hour": 360.0, "devices": 2}}), 100)
    assert "money" in text and re.search(r"in all .* [\d,]+\.\d\d *$", text, re.MULTILINE)


def test_checks_that_do_not_answer_share_one_deadline():
    began = time.monotonic()
    run_checks([CheckStep(str(number), lambda: time.sleep(8) or []) for number in range(4)], seconds=0.5)
    assert time.monotonic() - began < 1.9


def test_an_accelerator_is_predicted_by_its_data_sheet_if_it_has_one(predicted):
    assert "one of 1xH100 by its data sheet, not measured" in predicted({"H100": 1}).basis
    assert predicted({"24.0GiB": 1}) is None and predicted(looked=False) is None


def test_what_a_run_took_corrects_the_next_prediction_and_its_error_is_said(predicted, tmp_path):
    LakeLayout.open(tmp_path / "lake")
    first = predicted()
    seconds = {line.stage: line.seconds for line in first.lines}
    outcome = Outcome(
        seconds={"sft_model": 3 * seconds["sft_model"], "eval_suite": 0.1},
        reused={"eval_suite"},
        step_peak_memory_mb={"sft_model": 2048.0},
    )
    said = forecasting.keep_measured(first, outcome, sum(outcome.seconds.values()) + 3 * seconds["around the steps"])
    assert "were predicted (3.0 times as long)" in said
    again = predicted()
    now = {line.stage: line for line in again.lines}
    assert now["sft_model"].seconds == pytest.approx(3 * seconds["sft_model"], rel=0.01)
    assert now["sft_model"].memory_bytes == 2 * 2**30 and now["eval_suite"].seconds == seconds["eval_suite"]
    assert "3.0 times as long" in " ".join(printed(again, 80).split())
    assert now["sft_model"].planned_bytes == 1.5e9 and now["evaluation_report"].memory_bytes == 1.2e9
    forecasting.keep_measured(again, Outcome(exit_code=1, seconds={"sft_model": 1.0}, failed={"sft_model"}), 1.0)
    assert {line.stage: line.seconds for line in predicted().lines} == {name: line.seconds for name, line in now.items()}


def test_what_finished_before_a_failure_corrects_the_next_prediction_too(predicted, tmp_path):
    LakeLayout.open(tmp_path / "lake")
    before = {line.stage: line.seconds for line in predicted().lines}
    outcome = Outcome(exit_code=1, seconds={"sft_model": 200.0, "evaluation_report": 1.0}, failed={"evaluation_report"})
    forecasting.keep_measured(predicted(), outcome, 300.0)
    now = {line.stage: line.seconds for line in predicted().lines}
    assert now == {**before, "sft_model": pytest.approx(min(200.0, forecasting.MOST * before["sft_model"]))}


def test_the_end_of_a_run_names_the_stage_that_was_furthest_off(predicted, tmp_path):
    LakeLayout.open(tmp_path / "lake")
    found = predicted()
    seconds = {line.stage: line.seconds for line in found.lines} | {"sft_model": 700.0}
    seconds.pop("around the steps")
    said = forecasting.keep_measured(found, Outcome(seconds=seconds), sum(seconds.values()))
    assert "most of it sft_model: predicted " in said and "s, took 12 min" in said


def test_what_a_run_took_corrects_only_runs_on_the_same_devices_and_base_model(predicted, tmp_path):
    LakeLayout.open(tmp_path / "lake")
    by_hand, on_gpu = predicted(), predicted({"H100": 1})
    for found, times in ((on_gpu, 2), (by_hand, 3)):
        seconds = {line.stage: times * line.seconds for line in found.lines if line.stage == "sft_model"}
        outcome = Outcome(seconds=seconds, step_peak_memory_mb={"sft_model": 2048.0})
        forecasting.keep_measured(found, outcome, 1.0)
        again = predicted({"H100": 1} if found is on_gpu else ())
        [(first, now)] = [each for each in zip(found.lines, again.lines, strict=True) if each[0].stage == "sft_model"]
        assert now.seconds == pytest.approx(times * first.seconds, rel=0.01) and now.memory_bytes == 2 * 2**30
    assert "50 GFLOP/s" in again.basis and predicted({"A100": 1}).measured == {}
    assert forecasting._conditions(load_recipe(write(tmp_path, base_model="tiny")), {}) != forecasting._conditions(
        load_recipe(write(tmp_path, base_model="org/model")), {}
    )


def test_every_stage_says_what_it_does():
    assert all(0 < len(each.does) <= 32 for each in STAGES)
