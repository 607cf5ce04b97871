"""What a release's page says of a real server."""

import json
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from assets.models import rollout_curves
from model_ops.answers.answer_rows import ROLLOUT_ROWS
from resources.lake.lake import LakeLayout
from resources.manifests.manifest import Code, Input, Manifest
from resources.releasing.charts import lines
from resources.releasing.model_card import render
from resources.releasing.server_sections import rollout_samples, rollout_section, rollout_series, server_sections

MEASURED = {"against": "own layers", "on": "held-out sessions", "n": 16, "counted": "rows", "unit": "nats per token"}
REPORT = {
    "measurements": [
        {"what": "served_distance", "of": "target", "value": 0.0219, "low": 0.02, "high": 0.0238, **MEASURED},
        {"what": "served_agreement", "of": "target", "value": 1.0, "low": 1.0, "high": 1.0, **MEASURED},
    ],
    "not_measured": {"target with drafter in a server": "vllm did not load it: it ended with exit code 1"},
    "in_server": {
        "kind": "vllm",
        "version": "0.32.0",
        "arguments": ["--seed", "0"],
        "max_new_tokens": 64,
        "tie_nats": 0.25,
        "median_distance": 0.011,
        "samples": [{"row_id": "r1", "text": "a | <b>bold</b>\n\u202eline"}],
        "forms": {
            "reference": {"loaded": True, "tau": None},
            "target": {"loaded": True, "tau": 1.5},
            "target with drafter": {"loaded": False},
        },
    },
}
RATES = {
    "1": {"median": 120.0, "lowest": 100.0, "highest": 130.0},
    "8": {"median": 2_000.0, "lowest": 1_000.0, "highest": 2_100.0},
}
RECORD = {"tokens_per_second": RATES, "started_s": 36.4, "memory_mb": 3_100.0}
SPEED = {
    "in_server": {
        "forms": {"reference": RECORD, "target": RECORD | {"memory_mb": None}},
        "ratios": {"target": {"1": 1.99, "8": 0.794}},
    }
}


def test_forms_speed_and_samples():
    loads, speed, samples = server_sections(REPORT, SPEED)
    assert loads.rows == [
        ["unquantized", "loaded", "", "", "36", "3.1"],
        ["served", "loaded", "0.0219 (0.0200 to 0.0238)", "1.0000 (1.0000 to 1.0000)", "36", ""],
        ["served with its drafter", "did not load", "", "", "", ""],
    ]
    assert (
        loads.note.startswith(
            "vllm 0.32.0, started with --seed 0. served with its drafter: vllm did not load it: it ended "
            "with exit code 1. Distance"
        )
        and "(median 0.011)" in loads.note
    )
    assert speed.columns == ["model", "1 at a time", "8 at a time", "tau"]
    assert speed.rows == [
        ["unquantized", "120 (100 to 130)", "2,000 (1,000 to 2,100)", ""],
        ["served", "120 (100 to 130)", "2,000 (1,000 to 2,100)", "1.50"],
        ["served / unquantized", "1.99", "0.79", ""],
    ]
    assert samples.rows == [["r1", "a | <b>bold</b> \\u202eline"]]


def test_without_a_server_the_page_says_so_and_without_speed_it_has_no_table_of_it():
    [none] = server_sections({"measurements": []}, {})
    assert none.rows == [["served", "no server was asked for"]]
    failed = REPORT | {
        "measurements": [],
        "in_server": REPORT["in_server"] | {"forms": {"target": {"loaded": False}}, "samples": [], "version": None},
    }
    [alone] = server_sections(failed, {})
    assert alone.rows == [["served", "did not load", "", "", "", ""]] and alone.note.startswith("vllm, started")


@pytest.mark.parametrize(
    ("template", "shown"),
    [
        ("report.md.j2", "| r1 | a \\| &lt;b>bold&lt;/b> \\u202eline |"),
        ("report.html.j2", ">a | &lt;b&gt;bold&lt;/b&gt; \\u202eline</td>"),
    ],
)
def test_text_of_a_model_is_text_on_the_page(template, shown):
    class Page:
        workload, about, gates, facts, charts = "tutor", "", [], None, []

        def all_sections(self):
            return [replace(section, note="") for section in server_sections(REPORT, SPEED)]

    page = render(template, summary=Page())
    assert shown in page
    if template == "report.html.j2":
        assert '<td data-column="state" class="missed">did not load</td>' in page


PROMPTS, STEPS = 12, 20


def answer(prompt, step, number):
    """Hard prompts (from 8) begin to be solved late, easy ones (below 4) always are."""
    grade = 1.0 if prompt < 4 or (prompt < 8 and number % 2) or step >= 16 else -0.5
    return {
        "row_id": f"p{prompt}",
        "interaction_ids": [],
        "step": step,
        "answer": number,
        "last": True,
        "version": step,
        "grade": grade,
        "parts": [("right", grade), ("brief", 0.25)],
        "problem": "",
        "tokens": 5,
        "ended": True,
        "learnt": True,
        "gap": 1e-6,
        "text": f"<b>{prompt}</b> at {step}",
    }


@pytest.fixture
def trained(tmp_path):
    lake = LakeLayout.open(tmp_path / "lake")
    model = lake.artefacts("model") / "tutor/rft_model/0123456789ab"
    asked = lake.artefacts("dataset") / "tutor/rl_prompts/ba9876543210"
    model.mkdir(parents=True), asked.mkdir(parents=True)
    rows = [answer(prompt, step, number) for step in range(STEPS) for prompt in range(PROMPTS) for number in range(2)]
    rows += [{**row, "last": False, "grade": -1.0, "tokens": 99} for row in rows]  # attempts of several rollouts
    pq.write_table(pa.Table.from_pylist(rows, schema=ROLLOUT_ROWS), model / "rollouts.parquet")
    steps = [
        {
            "step": step + 1,
            "reward": step / 20,
            "reward_right": step / 40,
            "reward_brief": -0.25,
            "answer_tokens": 5.0,
            "entropy": None if step == 3 else 2 - step / 20,
            "gap": 1e-6,
            "canary_gap": 2e-6,
        }
        for step in range(STEPS)
    ]
    (model / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in steps))
    prompts = [{"row_id": f"p{n}", "messages": json.dumps([{"role": "user", "content": f"ask & {n}"}])} for n in range(PROMPTS)]
    pq.write_table(pa.Table.from_pylist(prompts), asked / "train.parquet")
    manifest = Manifest(
        kind="model",
        name="tutor/rft_model",
        version="0123456789ab",
        digest="d",
        op="rft",
        config={"passing_grade": 1.0},
        inputs=[Input(kind="dataset", name="tutor/rl_prompts", version="ba9876543210", digest="e")],
        code=Code(revision="", dirty=False),
        environment={},
        files=[],
        metrics={"before_validation_pass_rate": 0.25, "validation_pass_rate": 0.5, "validation_cut": 0.0},
    )
    return lake, manifest, model


def test_curves_are_those_of_the_metrics_and_of_prompts_by_their_first_pass_rate(trained):
    _, _, model = trained
    series = rollout_series(model, 1.0)
    assert series["Reward by part"].keys() == {"all", "brief", "right"}
    assert len(series["Entropy, nats by token"]["mean"]) == STEPS - 1
    bands = series["Pass rate by difficulty"]
    assert bands.keys() == {"hard (at first below 25 %)", "medium", "easy (at first from 75 %)"}
    assert dict(bands["hard (at first below 25 %)"]) == {step + 1: float(step >= 16) for step in range(STEPS)}
    assert bands["medium"][0] == (1, 0.5) and bands["easy (at first from 75 %)"][0] == (1, 1.0)
    picture = rollout_curves(series)
    assert picture.startswith(b"\x89PNG") and len(picture) > 10_000


def test_the_section_shows_charts_and_held_out_numbers_and_no_text(trained):
    lake, manifest, _ = trained
    section = rollout_section(lake, manifest)
    assert section.rows == [["pass rate", "0.25", "0.5"]] and len(section.charts) == 5
    drawn = "".join(section.charts)
    assert drawn.count("<circle") == 3 * 7 + 3 * 7 + 7 + 7 + 2 * 7, "each point is of 3 steps, so that there are at most 8"
    assert " at 19" not in drawn and ">2e-06</text>" in drawn


def test_a_line_below_zero_stays_in_its_chart():
    drawn = lines("Reward", "mean by step", {"brief": [(1, -2.0), (2, -1.0)]})
    assert 'cy="128.0"' in drawn and 'cy="8.0"' in drawn and ">-2</text>" in drawn and ">-1</text>" in drawn


def test_worst_and_best_are_of_the_end_and_of_different_prompts(trained):
    lake, manifest, _ = trained
    rows = rollout_samples(lake, manifest)
    assert [row["side"] for row in rows] == ["worst"] * 5 + ["best"] * 5 and all(row["step"] >= 14 for row in rows)
    assert all(row["grade"] == (-0.5 if row["side"] == "worst" else 1.0) for row in rows)
    assert len({row["row_id"] for row in rows[:5]}) == len({row["row_id"] for row in rows[5:]}) == 5


def test_the_approval_page_shows_them_with_every_part_and_escapes_their_texts(trained):
    lake, manifest, model = trained
    samples = rollout_samples(lake, manifest)
    page = render("approval.html.j2", summary={"verdict": {}}, sections=[], worst=[], rollouts=samples, beside={})
    assert "10 answers that rewards judged worst and best" in page and "right -0.5, brief 0.25, step 1" in page
    assert "&lt;b&gt;" in page and "ask &amp; " in page and "<b>11</b>" not in page
    pq.write_table(pq.read_table(model / "rollouts.parquet").slice(0, 0), model / "rollouts.parquet")
    assert rollout_samples(lake, manifest) == [], "after an erasure of all of them"
