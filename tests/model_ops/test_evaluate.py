"""Operation evaluate: the report's numbers are those of its parts, and finished parts are not measured again."""

from __future__ import annotations

import json
import math

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tiny_models import write_dataset, write_target

from model_ops.decoding.decode_loop import decode
from model_ops.decoding.prompts import read_prompts
from model_ops.decoding.target import load_runner
from model_ops.documents.conversations import read_documents
from model_ops.documents.likelihood import RowLoss, held_out_loss, mean_loss
from model_ops.drafting.acceptance import tau_of
from model_ops.evaluation import acceptances, likelihoods
from model_ops.evaluation import report as evaluate
from model_ops.evaluation.measurement import find, measurements_of
from model_ops.jobs import Job, ModelError, Progress
from model_ops.models.model_directory import end_of_text_ids, load_model, load_tokenizer
from model_ops.operations import generate, quantize
from model_ops.speculators import operation as speculator


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    root = tmp_path_factory.mktemp("evaluate")
    write_target(root / "base", seed=1)
    write_target(root / "student")
    write_dataset(root / "dataset", rows=10)
    quantize.run(Job(operation="quantize", output=root / "quantized", inputs={"model": root / "student"}), Progress())
    generate.run(
        Job(
            operation="generate",
            output=root / "answers",
            settings={"max_new_tokens": 12},
            inputs={"target": root / "quantized", "dataset": root / "dataset"},
        ),
        Progress(),
    )
    speculator.run(
        Job(
            operation="speculator",
            output=root / "speculator",
            inputs={"target": root / "quantized", "dataset": root / "answers"},
            settings={"steps": 4, "tokens_per_step": 256, "learning_rate": 1e-3, "max_length": 256, "ttt_steps": 2},
        ),
        Progress(),
    )
    return root


def job(place, output, **changes):
    inputs = {name: place / name for name in ("base", "student", "quantized", "speculator", "dataset")}
    return Job(
        operation="evaluate",
        output=output,
        inputs={**inputs, "target": place / "quantized", "reference": place / "student"},
        settings={"max_new_tokens": 10, "batch_size": 4, "num_speculative_tokens": 2, **changes},
    )


def test_the_report_holds_together(place, tmp_path, monkeypatch):
    numbers = evaluate.run(job(place, tmp_path), Progress())
    report = json.loads((tmp_path / "report.json").read_text())
    assert set(report["models"]) == {"base", "student", "quantized"}
    assert report["same_directory"]["target"] == "quantized" and report["same_directory"]["reference"] == "student"
    documents, _ = read_documents(place / "dataset", "test", load_tokenizer(place / "student"), 4_096)
    loss = mean_loss(held_out_loss(load_model(place / "student"), documents))
    assert numbers["loss_student"] == pytest.approx(loss, rel=1e-6)
    assert numbers["recovery"] == pytest.approx(math.exp(loss - numbers["loss_quantized"]))
    assert numbers["recovery_low"] < numbers["recovery"] < numbers["recovery_high"] < numbers["recovery_low"] + 0.1
    assert report["prompts"] == 10 and report["prompts_asked"] == 200 and report["test_rows"] == 10
    likelihood = pq.read_table(tmp_path / "likelihood.parquet")
    assert likelihood.num_rows == 30 and set(likelihood.column_names) == {"row_id", "model", "nll_sum", "tokens"}
    rows = pq.read_table(tmp_path / "acceptance.parquet").to_pylist()
    assert len(rows) == 10 * 4 * 3 and {row["drafter"] for row in rows} == {"none", "ngram", "suffix", "eagle3"}
    assert all(sum(row["accepted_at"]) == row["accepted"] for row in rows)
    assert {(row["turns"], row["has_tools"]) for row in rows} == {(1, False), (2, False)}
    for summary in report["acceptance"]:
        of_it = [row for row in rows if (row["drafter"], row["sampling"]) == (summary["drafter"], summary["sampling"])]
        forwards, accepted = sum(r["forwards"] for r in of_it), sum(r["accepted"] for r in of_it)
        assert summary["tau"] == pytest.approx(tau_of(forwards, accepted))
        assert 1 <= summary["tau_low"] <= summary["tau"] <= summary["tau_high"] <= 1 + max(1, summary["num_speculative_tokens"])
        assert sum(summary["accepted_by_position"]) == pytest.approx(summary["tau"] - 1)
        assert all(a >= b for a, b in zip(summary["accepted_by_position"], summary["accepted_by_position"][1:], strict=False))
        shapes = summary["tau_by"]["prompt_shape"]
        assert set(shapes) == {"one turn", "two turns"} and sum(s["prompts"] for s in shapes.values()) == 10
    assert report["greedy_identical_share"] == {"eagle3_t0": 1.0}
    measured = measurements_of(report)
    worse = find(measured, "loss_increase", of="target", against="base")
    assert worse.value == pytest.approx(numbers["loss_quantized"] - numbers["loss_base"]) and worse.n == 10
    assert worse.low < worse.value < worse.high
    gain = find(measured, "acceptance_gain", of="eagle3", sampling="as logged")
    taus = {name: find(measured, "acceptance_length", of=name, sampling="as logged").value for name in ("eagle3", gain.against)}
    assert gain.value == pytest.approx(taus["eagle3"] / taus[gain.against] - 1) and gain.against in ("ngram", "suffix")
    assert report["not_measured"] == {}
    # the same job again measures nothing
    monkeypatch.setattr(acceptances, "measure", None)
    monkeypatch.setattr(likelihoods, "held_out_loss", None)
    assert evaluate.run(job(place, tmp_path), Progress()) == numbers


def test_the_drafter_is_compared_with_the_one_that_is_served_on_the_same_prompts(place, tmp_path):
    asked = {"rows": 2, "prompts": 4, "temperatures": [0.0], "num_speculative_tokens": 2, "max_new_tokens": 8}

    def compared(name, champion):
        job = Job(
            operation="evaluate",
            output=tmp_path / name,
            settings=asked,
            inputs={
                "target": place / "quantized",
                "dataset": place / "dataset",
                "speculator": place / "speculator",
                "champion_speculator": champion,
            },
        )
        return evaluate.run(job, Progress()), json.loads((tmp_path / name / "report.json").read_text())

    numbers, report = compared("same", place / "speculator")
    gains = [each for each in measurements_of(report) if each.what == "acceptance_gain" and each.against == "champion"]
    assert {(each.of, each.value, each.low, each.high, each.n) for each in gains} == {("eagle3", 0.0, 0.0, 0.0, 4)}
    assert (
        numbers["acceptance_gain_eagle3_champion"] == 0.0
        and numbers["tau_champion_as_logged"] == numbers["tau_eagle3_as_logged"]
    )
    assert [each["drafter"] for each in report["acceptance"]][-4:] == ["ngram", "suffix", "champion", "eagle3"]
    (tmp_path / "damaged").mkdir()
    numbers, report = compared("without", tmp_path / "damaged")
    assert (
        "config.json is missing" in report["not_measured"]["acceptance of champion"] and "tau_champion_as_logged" not in numbers
    )
    assert numbers["tau_eagle3_as_logged"] >= 1


def test_fewer_inputs_and_fewer_rows(place, tmp_path):
    numbers = evaluate.run(
        Job(
            operation="evaluate",
            output=tmp_path,
            inputs={"target": place / "student", "dataset": place / "dataset"},
            settings={"rows": 4, "prompts": 3, "max_new_tokens": 6, "temperatures": [1.0]},
        ),
        Progress(),
    )
    assert "recovery" not in numbers and "tau_eagle3_t1" not in numbers and numbers["prompts"] == 3
    assert numbers["tau_ngram_t1"] >= 1
    assert pq.read_table(tmp_path / "likelihood.parquet").num_rows == 4
    with pytest.raises(ModelError, match="dataset and target"):
        evaluate.run(Job(operation="evaluate", output=tmp_path, inputs={"target": place / "student"}), Progress())


def test_suffix_decoding_begins_with_the_answers_that_were_trained_on(place, tmp_path):
    inputs = {"target": place / "quantized", "dataset": place / "dataset"}
    asked = {"rows": 2, "max_new_tokens": 10, "temperatures": [0.0], "num_speculative_tokens": 2}
    cold = evaluate.run(Job(operation="evaluate", output=tmp_path / "cold", inputs=inputs, settings=asked), Progress())
    # the very answers that it will give
    tokenizer, runner = load_tokenizer(place / "quantized"), load_runner(place / "quantized")
    ids = [prompt.ids for prompt in read_prompts(place / "dataset", "test", tokenizer)]
    answers = decode(
        runner,
        ids,
        [str(n) for n in range(len(ids))],
        eos_ids=end_of_text_ids(place / "quantized"),
        temperature=0,
        max_new_tokens=10,
    )
    (tmp_path / "answers").mkdir()
    pq.write_table(pa.table({"answer_token_ids": [answer.tokens for answer in answers]}), tmp_path / "answers/train.parquet")
    inputs["answers"] = tmp_path / "answers"
    warm = evaluate.run(Job(operation="evaluate", output=tmp_path / "warm", inputs=inputs, settings=asked), Progress())
    assert warm["tau_suffix_t0"] > cold["tau_suffix_t0"] and warm["tau_ngram_t0"] == cold["tau_ngram_t0"]
    assert json.loads((tmp_path / "warm/report.json").read_text())["past_answers"] == len(ids)
    with pytest.raises(ModelError, match="a directory that `generate` wrote"):
        evaluate.run(
            Job(operation="evaluate", output=tmp_path / "bad", settings=asked, inputs={**inputs, "answers": place / "dataset"}),
            Progress(),
        )


def test_other_drafters_are_measured_by_their_kind(place, tmp_path):
    """DFlash, and the unquantized student as the drafter of the quantized one."""
    speculator.run(
        Job(
            operation="speculator",
            output=tmp_path / "dflash",
            inputs={"target": place / "quantized", "dataset": place / "answers"},
            settings={
                "steps": 2,
                "tokens_per_step": 256,
                "learning_rate": 1e-3,
                "max_length": 256,
                "architecture": "dflash",
                "num_speculative_tokens": 2,
            },
        ),
        Progress(),
    )
    inputs = {
        "target": place / "quantized",
        "dataset": place / "dataset",
        "speculator": tmp_path / "dflash",
        "draft_model": place / "student",
    }
    asked = {"rows": 2, "prompts": 6, "max_new_tokens": 8, "temperatures": [0.0, 1.0], "num_speculative_tokens": 2}
    numbers = evaluate.run(Job(operation="evaluate", output=tmp_path / "report", inputs=inputs, settings=asked), Progress())
    assert numbers["greedy_identical_dflash_t0"] == numbers["greedy_identical_draft_model_t0"] == 1.0
    assert numbers["tau_draft_model_t0"] > 2.5 and 1 <= numbers["tau_dflash_t1"] < numbers["tau_draft_model_t1"]
    with pytest.raises(ModelError, match="drafts 2 tokens and num_speculative_tokens is 3"):
        evaluate.run(
            Job(operation="evaluate", output=tmp_path / "more", inputs=inputs, settings={**asked, "num_speculative_tokens": 3}),
            Progress(),
        )
    write_target(tmp_path / "stranger", vocab_size=290)
    with pytest.raises(ModelError, match="another tokenizer than the target"):
        evaluate.run(
            Job(
                operation="evaluate",
                output=tmp_path / "other",
                settings=asked,
                inputs={**inputs, "draft_model": tmp_path / "stranger"},
            ),
            Progress(),
        )


def test_every_model_of_a_job_is_scored_and_stages_name_a_directory_before_target(tmp_path):
    names = ("target", "dataset", "base", "speculator", "reference", "aligned", "answers", "draft_model")
    job = Job(operation="evaluate", output=tmp_path, inputs={name: tmp_path / name for name in names})
    assert likelihoods.scored_models(job) == ["base", "aligned", "target", "reference"]


def test_another_model_is_compared_over_whole_rows_and_one_that_cannot_be_read_is_named(place, tmp_path):
    """A champion with another vocabulary reads other tokens; a base without a tokenizer stops nothing."""
    write_target(tmp_path / "champion", vocab_size=290, seed=3)
    (tmp_path / "base").mkdir()
    inputs = {
        "target": place / "student",
        "dataset": place / "dataset",
        "champion": tmp_path / "champion",
        "base": tmp_path / "base",
    }
    evaluate.run(
        Job(
            operation="evaluate",
            output=tmp_path / "report",
            inputs=inputs,
            settings={"prompts": 2, "max_new_tokens": 4, "temperatures": [0.0]},
        ),
        Progress(),
    )
    report = json.loads((tmp_path / "report/report.json").read_text())
    assert list(report["not_measured"]) == ["loss of base"] and "holds no tokenizer" in report["not_measured"]["loss of base"]
    rows = pq.read_table(tmp_path / "report/likelihood.parquet").to_pylist()
    sums, tokens = (
        {name: sum(row[key] for row in rows if row["model"] == name) for name in ("target", "champion")}
        for key in ("nll_sum", "tokens")
    )
    found = find(measurements_of(report), "loss_increase", of="target", against="champion")
    assert found.value == pytest.approx((sums["target"] - sums["champion"]) / tokens["target"]) and found.n == 10
    beside = report["side_by_side"]
    assert beside["rows"] == 10 and beside["since"] is None and beside["increase"] == pytest.approx(found.value)
    lines = [json.loads(line) for line in (tmp_path / "report/side_by_side.jsonl").read_text().splitlines()]
    assert {line["row_id"] for line in lines} == {f"test-{number}" for number in range(10)} and all(
        line["champion"] for line in lines
    )


def test_no_usable_prompt_is_reported_and_the_losses_are_measured(place, tmp_path):
    numbers = evaluate.run(
        Job(
            operation="evaluate",
            output=tmp_path,
            settings={"max_new_tokens": 2**20},
            inputs={"target": place / "student", "dataset": place / "dataset", "speculator": place / "speculator"},
        ),
        Progress(),
    )
    report = json.loads((tmp_path / "report.json").read_text())
    assert "raise max_length" in report["not_measured"]["acceptance"] and numbers["prompts"] == 0
    assert numbers["loss_target"] > 0 and not any(name.startswith("tau_") for name in numbers)


def test_losses_over_other_tokens_are_compared_by_row():
    """The other model reads a row as half as many tokens; its second row was cut, so only the first counts."""
    found = likelihoods.Likelihoods()
    own = [RowLoss("a", 6.0, 4), RowLoss("b", 1.0, 4), RowLoss("c", 8.0, 4)]
    other = [RowLoss("a", 4.0, 2), RowLoss("b", 9.0, 2), RowLoss("c", 4.0, 2)]
    likelihoods._compare(found, "target", "champion", other, own, {"b"})
    [increase] = found.measurements
    assert increase.value == (6.0 + 8.0 - 4.0 - 4.0) / 8 and increase.n == 2
    likelihoods._compare(found, "target", "base", other, own, {"a", "b", "c"})
    assert "no test row in common" in found.not_measured["loss of target against base"]
