"""What a drafter is trained on and goes on from: states from a disk or at once, previous weights, and refusals in words."""

import json
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_drafters import drafter_job
from tiny_models import run_job, write_dataset, write_target

from model_ops.decoding.target import load_runner
from model_ops.files.digests import target_digest, vocabulary_digest
from model_ops.jobs import ModelError, Progress
from model_ops.operations import generate
from model_ops.speculators import operation as speculator
from model_ops.speculators.continue_training import SHARES, begin_between, check_fit, take_over
from model_ops.speculators.factory import load_draft_model, new_draft_model
from model_ops.speculators.registry import speculator_settings
from model_ops.speculators.states.hidden_states import (
    AnswerRow,
    HiddenStates,
    OnlineStates,
    choose_states,
    fitting,
    read_answers,
)
from model_ops.speculators.states.speculator_batches import (
    choose_draft_vocabulary,
    count_answers,
    coverage_report,
    forced_ids,
    make_batch,
)
from model_ops.verify import verify


def answered(root):
    run_job(generate, root / "answers", {"target": root / "target", "dataset": root / "dataset"}, max_new_tokens=16)
    return root


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    root = tmp_path_factory.mktemp("drafter-data")
    write_target(root / "target")
    write_dataset(root / "dataset", rows=16)
    answered(root)
    run(root, root / "drafter")
    return root


def job(place, output, inputs=None, **changes):
    return drafter_job(place, output, inputs, **{"steps": 6, "ttt_steps": 2, **changes})


def run(place, output, inputs=None, **changes):
    return speculator.run(job(place, output, inputs, **changes), Progress())


def copied(place, root, name="target"):
    shutil.copytree(place / name, root / name)
    return root / name


def test_states_are_the_same_from_the_disk_and_at_once(place, tmp_path):
    rows, _ = read_answers(place / "answers" / "train.parquet", 256)
    runner = load_runner(place / "target")
    cache, online = HiddenStates(tmp_path, rows, (2, 4, 5), "t"), OnlineStates(runner, rows, (2, 4, 5))
    cache.compute(runner, Progress())
    stored, computed = make_batch(rows, cache, [0, 5, 9]), make_batch(rows, online, [0, 5, 9])
    for name in ("ids", "captured", "start", "windows", "last", "order"):
        torch.testing.assert_close(getattr(stored, name).float(), getattr(computed, name).float(), atol=0.05, rtol=0.02)
    assert cache.bytes_there() > 0


def test_a_quantized_targets_own_states_are_used(tmp_path):
    from model_ops.operations import quantize

    write_target(tmp_path / "whole")
    run_job(quantize, tmp_path / "target", {"model": tmp_path / "whole"})
    row = [AnswerRow("r", list(range(5, 40)), 10)]
    states = {}
    for name in ("whole", "target"):
        cache = HiddenStates(tmp_path / "states", row, (2, 4, 5), name)
        cache.compute(load_runner(tmp_path / name), Progress())
        states[name] = cache.of([0])[0][1].float()
    from model_ops.quantization.quantized_model import load_quantized

    model = load_quantized(tmp_path / "target", torch.float32)
    with torch.no_grad():
        own = model.model(input_ids=torch.tensor([row[0].ids]), use_cache=False).last_hidden_state[0]
    torch.testing.assert_close(states["target"], own[row[0].start : row[0].start + row[0].window + 1], atol=0.05, rtol=0.02)
    assert (states["target"] - states["whole"]).abs().max() > 0.05, "they are not those of the unquantized weights"


def test_online_and_cached_training_learn_the_same(place, tmp_path):
    metrics = {mode: run(place, tmp_path / mode, hidden_states=mode) for mode in ("online", "cache")}
    assert metrics["online"]["hidden_states"] == "online" and metrics["cache"]["hidden_states"] == "cache"
    assert metrics["cache"]["hidden_states_gib"] > 0 and not (tmp_path / "cache" / ".work" / "states").exists()
    assert metrics["online"]["loss"] == pytest.approx(metrics["cache"]["loss"], rel=0.02)


def test_a_cache_keeps_to_its_budget(place, tmp_path):
    rows = [AnswerRow(str(number), [3] * 100, 50) for number in range(10)]
    assert fitting(rows, 3, 32, 10 * 2 * 32 * (3 * 100 + 51)) == 10 and fitting(rows, 3, 32, 3.5 * 2 * 32 * 351) == 3
    asked = speculator_settings(hidden_states="cache", cache_gib=3.5 * 2 * 32 * 351 / 2**30, epochs=3).resolved()
    with pytest.raises(ModelError, match=r"10 answers take 0\.2 MiB and cache_gib allows 0\.1 MiB: 3 of them would fit"):
        choose_states(asked, rows, 3, 32, tmp_path)
    auto = asked.model_copy(update={"hidden_states": "auto"})
    assert choose_states(auto, rows, 3, 32, tmp_path).mode == "online"
    assert choose_states(auto.model_copy(update={"cache_gib": 1.0}), rows, 3, 32, tmp_path).mode == "cache"
    assert choose_states(auto.model_copy(update={"cache_gib": 1.0, "epochs": 1.0}), rows, 3, 32, tmp_path).mode == "online"
    with pytest.raises(ModelError, match="would fit; set hidden_states to online"):
        run(place, tmp_path / "run", hidden_states="cache", cache_gib=1e-6)
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_the_draft_vocabulary_counts_supervised_tokens_and_holds_what_ends_and_marks_answers(place):
    rows = [AnswerRow("a", [9] * 50 + [11, 11, 12], 50, "math"), AnswerRow("b", [9] * 20 + [13] * 5, 20, "chat")]
    counts = count_answers(rows, 300)
    assert counts[9] == 0 and counts[11] == 2 and counts[13] == 5
    from model_ops.models.model_directory import load_tokenizer

    tokenizer = load_tokenizer(place / "target")
    tokenizer.chat_template = "{{ '<think>' }}{{ messages }}</think>"
    forced = forced_ids(place / "target", tokenizer)
    assert tokenizer.eos_token_id in forced and set(tokenizer("<think>", add_special_tokens=False)["input_ids"]) <= forced
    ids, _ = choose_draft_vocabulary(counts, forced, coverage=0.8)
    assert 13 in ids and 12 not in ids
    report = coverage_report(ids, rows, [AnswerRow("c", [1, 1, 13, 200], 2)])
    assert report == {
        "draft_coverage": 7 / 8,
        "draft_coverage_held_out": 0.5,
        "draft_coverage_by_workload": {"chat": 1.0, "math": pytest.approx(2 / 3)},
    }


def test_a_drafter_names_its_target_and_verify_looks(place, tmp_path):
    for folder in (place / "drafter", place / "drafter" / "speculators"):
        config = json.loads((folder / "config.json").read_text())
        assert config["target_digest"] == target_digest(place / "target")
        assert config["target_vocabulary_digest"] == vocabulary_digest(place / "target")
    assert verify(place / "drafter", place / "target") == []
    write_target(tmp_path / "target", seed=1)
    sentences = [problem.sentence for problem in verify(place / "drafter", tmp_path / "target")]
    assert sentences and all("another revision of the target" in sentence for sentence in sentences)


def test_continuing_takes_all_weights_over_and_new_tokens_from_the_target(place):
    runner = load_runner(place / "target")
    settings = speculator_settings(ttt_steps=2, seed=5).resolved()
    before, after = torch.arange(0, 200), torch.arange(100, 250)
    previous = new_draft_model(settings, runner, before)
    with torch.no_grad():
        for parameter in previous.parameters():
            parameter += torch.randn_like(parameter)
    model = new_draft_model(settings.model_copy(update={"seed": 6}), runner, after)
    fresh = model.lm_head.weight.clone()
    assert check_fit(model, previous) == {"head_rows_taken_over": 100, "head_rows_new": 50}
    take_over(model, previous)
    assert torch.equal(model.lm_head.weight[:100], previous.lm_head.weight[100:])
    assert torch.equal(model.lm_head.weight[100:], fresh[100:])
    assert torch.equal(model.target_ids, after), "the vocabulary is the new traffic's"
    own, theirs = model.state_dict(), previous.state_dict()
    assert all(
        torch.equal(own[name], theirs[name])
        for name in own
        if name not in ("lm_head.weight", "d2t", "t2d", "embed_tokens.weight")
    )
    assert torch.equal(model.embed_tokens.weight, runner.embedding.float()), "no drafter trains it: it is the target's"


@pytest.mark.parametrize(
    "left, expected",
    [
        ({0.25: 1.95, 0.5: 2.0, 0.75: 2.0}, 0.25),  # 0.9 of what was accepted beyond 1 is left
        ({0.25: 1.5, 0.5: 1.89, 0.75: 1.91}, 0.75),
        ({0.25: 1.0, 0.5: 1.2, 0.75: 1.6}, 1.0),
    ],
)
def test_a_previous_drafter_is_shrunk_as_far_as_it_costs_little(place, left, expected):
    runner = load_runner(place / "target")
    settings = speculator_settings(ttt_steps=2, seed=5).resolved()
    previous = new_draft_model(settings, runner, torch.arange(0, 200))
    with torch.no_grad():
        for parameter in previous.parameters():
            parameter += torch.randn_like(parameter)
    model = new_draft_model(settings, runner, torch.arange(100, 250))
    fresh = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    tau_of, tried = {**left, 1.0: 2.0}, []

    def accepted():
        """Finds the share in the weights themselves."""
        far = (model.fc.weight - fresh["fc.weight"]) / (previous.fc.weight - fresh["fc.weight"])
        tried.append(round(float(far.median()), 3))
        return tau_of[tried[-1]]

    assert begin_between(model, previous, None, accepted) == expected
    assert tried == [1.0, *(share for share in SHARES if share <= expected)]
    own, theirs = model.state_dict(), previous.state_dict()
    for name, share_of in (("fc.weight", fresh["fc.weight"]), ("norm.weight", fresh["norm.weight"])):
        torch.testing.assert_close(own[name], torch.lerp(share_of, theirs[name], expected))
    head = torch.lerp(fresh["lm_head.weight"][:100], theirs["lm_head.weight"][100:], expected)
    torch.testing.assert_close(own["lm_head.weight"], torch.cat((head, fresh["lm_head.weight"][100:])))
    assert torch.equal(own["embed_tokens.weight"], fresh["embed_tokens.weight"])


def test_a_run_goes_on_from_a_previous_drafter(place, tmp_path):
    metrics = run(place, tmp_path / "a", {"previous": place / "drafter"}, steps=1, learning_rate=1e-9, previous_share=1)
    assert metrics["head_rows_taken_over"] == metrics["draft_vocab_size"] and metrics["head_rows_new"] == 0
    assert metrics["previous_share"] == 1
    old, new = load_draft_model(place / "drafter"), load_draft_model(tmp_path / "a")
    torch.testing.assert_close(old.fc.weight, new.fc.weight, atol=1e-2, rtol=1e-2)
    named = run(place, tmp_path / "b", steps=1, continue_from=str(place / "drafter"))
    assert named["head_rows_taken_over"] == metrics["head_rows_taken_over"]
    assert named["previous_share"] in (*SHARES, 1.0)


def changed_config(folder, **changes):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(
        json.dumps({name: value for name, value in {**config, **changes}.items() if value is not None})
    )
    return folder


def test_previous_drafters_that_cannot_go_on_are_refused_before_the_target_is_loaded(place, tmp_path, monkeypatch):
    monkeypatch.setattr(speculator, "load_runner", None)  # nothing may get that far
    for name, changes, reason in [
        ("digest", {"target_digest": "0" * 64}, "another revision of the target"),
        ("tokenizer", {"target_vocabulary_digest": "0" * 64}, "target's vocabulary.*another revision"),
        ("nameless", {"target_digest": None}, "has no target_digest"),
    ]:
        drafter = changed_config(copied(place, tmp_path / name, "drafter"), **changes)
        with pytest.raises(ModelError, match=f"continue_from: .*{reason}"):
            run(place, tmp_path / "out", {"previous": drafter})
    with pytest.raises(ModelError, match="is not a drafter"):
        run(place, tmp_path / "out", continue_from=str(tmp_path))


def test_targets_and_answers_that_make_no_sense_are_refused_before_the_target_is_loaded(place, tmp_path, monkeypatch):
    monkeypatch.setattr(speculator, "load_runner", None)

    def refused(reason, target=None, answers=None):
        inputs = {"target": target or place / "target", "dataset": answers or place / "answers"}
        with pytest.raises(ModelError, match=reason):
            run(place, tmp_path / "out", inputs)

    shallow = changed_config(copied(place, tmp_path / "shallow"), num_hidden_layers=3)
    refused("a target of 3 layers has fewer", shallow)
    without = changed_config(copied(place, tmp_path / "without"), vocab_size=None)
    refused("vocab_size in config.json is None, not a number", without)
    headless = changed_config(copied(place, tmp_path / "headless"), tie_word_embeddings=False)
    refused("tie_word_embeddings is false and there is no lm_head.weight", headless)
    tied = copied(place, tmp_path / "tied")
    weights = load_file(tied / "model.safetensors")
    weights["lm_head.weight"] = weights.pop("model.embed_tokens.weight")
    save_file(weights, tied / "model.safetensors", metadata={"format": "pt"})
    refused("tie_word_embeddings is true and there is no model.embed_tokens.weight", tied)
    endless = copied(place, tmp_path / "endless")
    (endless / "generation_config.json").write_text(json.dumps({"eos_token_id": 4_000}))
    refused("eos_token_id 4000 is outside the vocabulary of 300", endless)

    table = pq.read_table(place / "answers" / "train.parquet")

    def written(name, rows, held_out=None):
        (tmp_path / name).mkdir()
        pq.write_table(rows, tmp_path / name / "train.parquet")
        if held_out is not None:
            pq.write_table(held_out, tmp_path / name / "validation.parquet")
        return tmp_path / name

    refused("holds no answer to train the drafter on", answers=written("empty", table.slice(0, 0)))
    silent = table.set_column(
        table.schema.get_field_index("answer_token_ids"),
        "answer_token_ids",
        pa.array([[]] * table.num_rows, pa.list_(pa.int32())),
    )
    refused(f"none of the {table.num_rows} answers .* holds a token to predict", answers=written("silent", silent))
    other = table.replace_schema_metadata({b"target_digest": b"0" * 64})
    refused("answered with other weights", answers=written("other", other))
    refused("validation.parquet was answered with other weights", answers=written("other held out", table, other))
    other = {b"vocabulary_digest": b"0" * 64}
    refused("answered with other tokenizer", answers=written("tokenizer", table.replace_schema_metadata(other)))
    strange = pa.array([[299, 300]] * table.num_rows, pa.list_(pa.int32()))
    strange = table.set_column(table.schema.get_field_index("answer_token_ids"), "answer_token_ids", strange)
    refused("outside the target's vocabulary of 300", answers=written("strange", strange))
    refused("validation.parquet: row .* outside the target's vocabulary", answers=written("strange held out", table, strange))
