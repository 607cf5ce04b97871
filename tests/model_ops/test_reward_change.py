"""What training on rewards changed on held-out prompts, measured with two tiny models."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tiny_models import write_target

from model_ops.evaluation.measurement import HELD_OUT_PROMPTS
from model_ops.evaluation.reward_change import reward_change
from model_ops.evaluation.settings import EvaluateSettings
from model_ops.jobs.job import Job, Progress

SETTINGS = EvaluateSettings(max_new_tokens=3, parents={"prompts": "sft"})


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    root = tmp_path_factory.mktemp("rewards")
    for seed, name in enumerate(("target", "sft")):
        write_target(root / name, layers=2, seed=seed, max_position_embeddings=512)
    return root


def measured(place, output, verifier, settings=SETTINGS, **inputs):
    folder = output / "prompts"
    folder.mkdir(parents=True)
    rows = [
        {
            "row_id": f"p{number}",
            "messages": json.dumps([{"role": "user", "content": f"say {number}"}]),
            "verifier": json.dumps(verifier),
        }
        for number in range(9)
    ]
    pq.write_table(pa.Table.from_pylist(rows), folder / "validation.parquet")
    pq.write_table(pa.Table.from_pylist(rows).slice(0, 0), folder / "test.parquet")
    named = {"prompts": folder, "target": place / "target", "rft": place / "target", "sft": place / "sft", **inputs}
    return reward_change(Job(operation="evaluate", output=output, inputs=named), settings, Progress())


def test_the_gain_is_the_difference_of_passed_answers_with_its_interval(place, tmp_path):
    [gain] = measured(place, tmp_path, {"kind": "regex", "pattern": "[Qn]"}).measurements
    kept = {role: json.loads((tmp_path / f".work/rewards-{role}.json").read_text())["value"] for role in ("target", "sft")}
    differences = [kept["target"][name][0] - kept["sft"][name][0] for name in kept["target"]]
    assert {grade for by_row in kept.values() for grade, _, _ in by_row.values()} == {0.0, 1.0}
    assert gain.value == pytest.approx(sum(differences) / 9) and gain.low <= gain.value <= gain.high
    assert (gain.what, gain.of, gain.against, gain.n, gain.on) == ("rft_gain", "target", "sft", 9, HELD_OUT_PROMPTS)


def test_passed_answers_are_kept_to_be_read_and_the_report_says_who_graded_the_training(place, tmp_path):
    settings = SETTINGS.model_copy(update={"rft_graders": ["length", "verifier"]})
    trained_on = measured(place, tmp_path, {"kind": "regex", "pattern": "."}, settings=settings).summary
    lines = [json.loads(line) for line in (tmp_path / "passed_answers.jsonl").read_text().splitlines()]
    assert trained_on["passed"] == trained_on["scored"] == len(lines) == 9 and trained_on["is_trained_on"]
    assert [[line["row_id"], line["gain"]] for line in lines] == trained_on["least"]
    assert {line["row_id"]: line["prompt"] for line in lines} == {f"p{number}": f"say {number}" for number in range(9)}
    other = measured(place, tmp_path / "none", {"kind": "regex", "pattern": "$x"}).summary
    assert other == {"passed": 0, "scored": 0, "is_trained_on": False, "least": []}


def test_a_model_beside_itself_gained_nothing_and_rows_without_a_verifier_say_so(place, tmp_path):
    same = measured(place, tmp_path / "same", {"kind": "regex", "pattern": "[Qn]"}, sft=place / "target")
    assert [each.value for each in same.measurements] == [0.0]
    found = measured(place, tmp_path / "none", {})
    assert not found.measurements and "no held-out row of rl_prompts brings" in found.not_measured[HELD_OUT_PROMPTS]
