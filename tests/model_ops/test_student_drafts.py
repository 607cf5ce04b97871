"""The student as its teacher's draft model: acceptance as a loop over whole forward passes counts it, and the estimated
speed-up."""

from __future__ import annotations

import json

import pyarrow.parquet as pq
import pytest
import torch
from tiny_models import write_dataset, write_target

from model_ops.decoding.prompts import read_prompts
from model_ops.evaluation import report as evaluate
from model_ops.evaluation.likelihoods import comparisons
from model_ops.evaluation.measurement import find, measurements_of
from model_ops.evaluation.student_drafts import acceptance_chance, best_length, expected_speed_up
from model_ops.jobs.job import Job
from model_ops.jobs.progress import Progress
from model_ops.models.end_of_text import end_of_text_ids
from model_ops.models.model_directory import load_model, load_tokenizer, save_model

DRAFTS, TOKENS = 3, 10


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A teacher, and a student that is its first layers, so that it often says the same."""
    root = tmp_path_factory.mktemp("student_drafts")
    tokenizer = write_target(root / "sft", layers=4)
    model = load_model(root / "sft", attention="sdpa")
    model.model.layers = model.model.layers[:3]
    model.config.num_hidden_layers = 3
    model.config.layer_types = model.config.layer_types[:3]
    save_model(model, tokenizer, root / "student")
    write_dataset(root / "dataset", rows=6)
    return root


def evaluated(place, output, student="student", more=None, **asked):
    """The report of a small evaluation, and its headline numbers."""
    roles = {"sft": place / "sft", "student": place / student, "target": place / student, "dataset": place / "dataset"}
    numbers = evaluate.run(
        Job(
            operation="evaluate",
            output=output,
            inputs={**roles, **(more or {})},
            settings={
                "rows": 2,
                "prompts": 2,
                "max_new_tokens": TOKENS,
                "temperatures": [0.0, 1.0],
                "student_drafts": {"prompts": 5, "num_speculative_tokens": DRAFTS, **asked},
            },
        ),
        Progress(),
    )
    return json.loads((output / "report.json").read_text()), numbers


@torch.no_grad()
def greedy(model, ids, count):
    ids = list(ids)
    for _ in range(count):
        ids.append(int(model(input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[len(ids) - count :]


def rounds_of(teacher, student, prompt, ends):
    """Rounds of greedy draft-and-verify for one prompt, without any cache: rounds, and those that accepted each position."""
    text, forwards, accepted_at = list(prompt) + greedy(teacher, prompt, 1), 0, [0] * DRAFTS
    while len(text) - len(prompt) < TOKENS and not ends & set(text[len(prompt) :]):
        drafts, own = greedy(student, text, DRAFTS), greedy(teacher, text, DRAFTS + 1)
        same = next((place for place in range(DRAFTS) if drafts[place] != own[place]), DRAFTS)
        forwards += 1
        for position in range(same):
            accepted_at[position] += 1
        text += own[: same + 1]
    return forwards, accepted_at


def test_acceptance_is_that_of_a_loop_without_a_cache(place, tmp_path):
    report, numbers = evaluated(place, tmp_path)
    teacher, student = (load_model(place / name, attention="sdpa") for name in ("sft", "student"))
    ends = set(end_of_text_ids(place / "sft"))
    prompts = {prompt.row_id: prompt.ids for prompt in read_prompts(place / "dataset", "test", load_tokenizer(place / "sft"))}
    rows = [row for row in pq.read_table(tmp_path / "student_acceptance.parquet").to_pylist() if row["sampling"] == "greedy"]
    assert len(rows) == 5
    for row in rows:
        assert (row["forwards"], row["accepted_at"]) == rounds_of(teacher, student, prompts[row["row_id"]], ends)
    forwards, accepted = (sum(row[name] for row in rows) for name in ("forwards", "accepted"))
    assert 0 < accepted < forwards * DRAFTS  # some are accepted, and some are not
    drafts = report["student_drafts"]
    by_sampling = {found["sampling"]: found for found in drafts["samplings"]}
    assert set(by_sampling) == {"greedy", "temperature 1", "as logged"} and drafts["teacher"] == "sft"
    assert by_sampling["greedy"]["tau"] == numbers["tau_student_t0"] == 1 + accepted / forwards
    assert by_sampling["greedy"]["accepted_by_position"] == [
        sum(row["accepted_at"][position] for row in rows) / forwards for position in range(DRAFTS)
    ]
    # q, k, v, o and the MLP of each layer (4 heads of 8, 2 of them for keys and values), and the head
    layer, head = 32 * 32 * 2 + 32 * 16 * 2 + 3 * 32 * 48, 300 * 32
    assert drafts["weights_of_a_token"] == {"teacher": 4 * layer + head, "student": 3 * layer + head}
    assert drafts["cost"] == numbers["student_token_cost"] == (3 * layer + head) / (4 * layer + head)
    for sampling, found in by_sampling.items():
        tried = sum([found["drafts"], *(round(share * found["forwards"]) for share in found["accepted_by_position"][:-1])])
        assert found["alpha"] == pytest.approx(found["accepted"] / tried)
        speeds = [sum(found["alpha"] ** i for i in range(k + 1)) / (1 + k * drafts["cost"]) for k in range(DRAFTS + 1)]
        assert found["speed_up"] == pytest.approx(max(speeds))
        assert found["best_num_speculative_tokens"] == speeds.index(max(speeds))
        estimate = find(measurements_of(report), "speed_up_estimate", of="student", against="sft", sampling=sampling)
        assert estimate.value == found["speed_up"] and estimate.n == 5
    speed = json.loads((tmp_path / "speed.json").read_text())["student_drafts"]
    assert speed["measured_cost"] == pytest.approx(speed["teacher_tokens_per_second"] / speed["student_tokens_per_second"])
    assert "tokens_per_second" not in json.dumps(report["student_drafts"])  # a record of the run, in no version's digest


@pytest.mark.parametrize("why", ["another tokenizer", "another vocabulary"])
def test_a_student_of_other_tokens_is_skipped_and_the_report_says_why(place, tmp_path, why):
    if why == "another tokenizer":
        write_target(tmp_path / "other", layers=1, vocab_size=290)
    else:
        tokenizer, model = load_tokenizer(place / "student"), load_model(place / "student", attention="sdpa")
        model.resize_token_embeddings(310, mean_resizing=False)
        save_model(model, tokenizer, tmp_path / "other")
    report, numbers = evaluated(place, tmp_path / "report", student=tmp_path / "other")
    said = {"another tokenizer": "the student has another tokenizer", "another vocabulary": "the student has vocab_size 310"}
    assert report["student_drafts"]["skipped"].startswith(said[why]) and report["prompts"] == 2
    assert not any("student_t0" in name for name in numbers) and not (tmp_path / "report/student_acceptance.parquet").exists()


def test_nothing_is_measured_twice_or_where_it_is_switched_off(place, tmp_path):
    report, _ = evaluated(place, tmp_path / "off", prompts=0)
    assert "student_drafts" not in report and "student_drafts" not in (tmp_path / "off/speed.json").read_text()
    report, numbers = evaluated(place, tmp_path / "drafter", more={"draft_model": place / "student", "target": place / "sft"})
    assert "student_drafts" not in report and numbers["tau_draft_model_t0"] > 1


def test_a_merge_is_the_student_s_teacher(tmp_path):
    job = Job(
        operation="evaluate", output=tmp_path, inputs={name: tmp_path / name for name in ("base", "sft", "merged", "student")}
    )
    assert comparisons(job)[-1] == ("student", "merged")


@pytest.mark.parametrize(
    ("alpha", "drafts", "speed_up"),
    [(0.6, 2, 1.96), (0.7, 3, 2.53), (0.8, 2, 2.44), (0.8, 5, 3.69), (0.9, 2, 2.71), (0.9, 10, 6.86)],
)
def test_the_estimate_is_the_paper_s(alpha, drafts, speed_up):
    """Table 1 of arXiv 2211.17192, where a draft costs nothing."""
    assert expected_speed_up(alpha, drafts, cost=0) == pytest.approx(speed_up, abs=0.005)
    assert expected_speed_up(alpha, drafts, cost=0.1) == pytest.approx(expected_speed_up(alpha, drafts, 0) / (1 + 0.1 * drafts))


def test_the_best_length_and_drafts_that_do_not_pay():
    assert expected_speed_up(1.0, 4, 0.25) == 5 / 2
    found = best_length(0.8, 0.05, longest=12)
    tried = {k: sum(0.8**i for i in range(k + 1)) / (1 + 0.05 * k) for k in range(13)}
    assert tried[found.num_speculative_tokens] == max(tried.values()) and found.speed_up == pytest.approx(max(tried.values()))
    assert best_length(0.5, 0.6, longest=8) == best_length(0.0, 0.0, longest=8)
    assert (best_length(0.5, 0.6, 8).num_speculative_tokens, best_length(0.5, 0.6, 8).speed_up) == (0, 1.0)


def test_the_chance_of_acceptance_is_the_likeliest():
    """50 rounds of 3 drafts: 10 accept none, 15 one, 5 two, 20 all. The likelihood is a^accepted (1 - a)^rejected."""
    accepted, rejected = 15 + 2 * 5 + 3 * 20, 10 + 15 + 5
    grid = torch.linspace(0.001, 0.999, 999, dtype=torch.float64)
    likeliest = float(grid[(accepted * grid.log() + rejected * (1 - grid).log()).argmax()])
    assert acceptance_chance(50, [40, 25, 20]) == pytest.approx(likeliest, abs=5e-4)
    assert acceptance_chance(0, [0, 0]) == 0.0
