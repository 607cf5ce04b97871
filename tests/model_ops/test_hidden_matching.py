"""Hidden-state matching: the loss and its gradient are those of a plain implementation, and students learn from it."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from model_ops.documents.documents import Document, to_batch
from model_ops.families.loading import layer_list
from model_ops.jobs.errors import ModelError
from model_ops.jobs.job import Job
from model_ops.jobs.progress import Progress, Stopped
from model_ops.models.tiny_families import OWN
from model_ops.models.tiny_families import tiny_model as tiny_family
from model_ops.objectives.distillation import Divergence, distillation_loss
from model_ops.objectives.hidden_matching import HiddenStateMatching, segment_ends
from model_ops.operations import distill
from model_ops.operations.distill_settings import StudentSettings
from model_ops.pruning.narrower import Importance, Widths, kept_channels, make_narrower
from model_ops.pruning.shallower import layers_fit, make_student
from model_ops.tensors.loss import LossOfTerms

SETTINGS = {
    "steps": 6,
    "learning_rate": 3e-3,
    "tokens_per_step": 512,
    "max_length": 128,
    "checkpoint_every": 2,
    "layers": 2,
    "hidden_weight": 2.0,
}


def documents(vocabulary=61):
    generator = np.random.default_rng(0)
    return [
        Document(f"r{i}", generator.integers(3, vocabulary, length), np.arange(length) > 4)
        for i, length in enumerate((9, 24, 17))
    ]


def matching(teacher, layers, weight=1.0, channels=None):
    return HiddenStateMatching(distillation_loss(teacher, Divergence()), teacher, segment_ends(layers, 4), weight, channels)


def plain_states(model, ids):
    """The residual stream after every layer, as transformers returns it; the last one, which it returns after the norm, is read
    at the norm's input."""
    last = []
    hook = model.model.norm.register_forward_pre_hook(lambda _, given: last.append(given[0]))
    states = model(ids, use_cache=False, output_hidden_states=True).hidden_states
    hook.remove()
    return [*states[1:-1], last[0]]


def plain_error(student, teacher, ends, channels=slice(None)):
    """The mean over tokens and blocks, with documents read one by one."""
    errors = []
    for document in documents():
        ids = torch.from_numpy(document.input_ids).long()[None]
        with torch.no_grad():
            wanted = [plain_states(teacher, ids)[end][..., channels] for end in ends]
        pairs = zip(plain_states(student, ids), wanted, strict=True)
        errors.append(torch.stack([(got - of).square().sum(-1) / of.square().sum(-1) for got, of in pairs]).mean(0)[0])
    return torch.cat(errors).mean()


def test_segments_end_before_the_next_kept_layer():
    assert segment_ends([0, 2, 5], 8) == [1, 4, 7]
    assert segment_ends([3], 8) == [7] and segment_ends([0, 1, 2], 3) == [0, 1, 2]


@pytest.mark.parametrize("kind", ["qwen3", "gemma2"])
def test_loss_and_gradient_are_those_of_a_plain_implementation(kind):
    teacher, batch = tiny_family(kind, num_hidden_layers=4).requires_grad_(False), to_batch(documents())
    student, again = (make_student(teacher, [0, 2]).requires_grad_(True) for _ in range(2))
    before = [len(layer._forward_hooks) for model in (teacher, student) for layer in model.model.layers]
    loss = matching(teacher, [0, 2], weight=3.0)
    output, counts = loss(student, batch), loss.counts(batch)
    assert [len(layer._forward_hooks) for model in (teacher, student) for layer in model.model.layers] == before
    assert isinstance(loss, LossOfTerms) and output.terms.keys() == counts.keys() == {"logits", "hidden"}
    hidden = output.terms["hidden"]
    assert hidden.count == counts["hidden"] == 50 and output.terms["logits"].count == counts["logits"] == 35
    expected = plain_error(again, teacher, [1, 3])
    assert float(expected.detach()) > 0.05
    assert float(hidden.sum.detach()) / 50 == pytest.approx(3 * float(expected), rel=1e-4)
    assert float(output.metrics["hidden_error"].sum) / 50 == pytest.approx(float(expected), rel=1e-4)
    (hidden.sum / hidden.count).backward()
    (3 * expected).backward()
    for name, parameter in student.named_parameters():
        wanted = dict(again.named_parameters())[name].grad
        if parameter.grad is not None or wanted is not None:
            assert torch.allclose(parameter.grad, wanted, rtol=1e-3, atol=1e-6), name


def test_the_term_of_the_logits_is_the_wrapped_loss():
    teacher, batch = tiny_family("qwen3", num_hidden_layers=4).requires_grad_(False), to_batch(documents())
    student = make_student(teacher, [1, 3])
    alone = distillation_loss(teacher, Divergence())(student, batch)
    output = matching(teacher, [1, 3])(student, batch)
    assert torch.equal(output.terms["logits"].sum, alone.terms["loss"].sum)
    assert torch.equal(output.metrics["kl"].sum, alone.metrics["kl"].sum)


@pytest.mark.parametrize("kind", OWN)
def test_a_student_of_all_layers_has_no_error_and_a_shallower_one_has(kind):
    teacher, batch = tiny_family(kind, num_hidden_layers=4).requires_grad_(False), to_batch(documents())
    whole = matching(teacher, [0, 1, 2, 3])(make_student(teacher, [0, 1, 2, 3]), batch).terms["hidden"]
    assert float(whole.sum) < 1e-6
    layers = next(kept for kept in ([0, 2], [0, 1, 2], [1, 3]) if layers_fit(teacher, kept))
    student = make_student(teacher, layers).requires_grad_(True)
    error = matching(teacher, layers)(student, batch).terms["hidden"]
    error.sum.backward()
    assert float(error.sum.detach()) / 50 > 1e-3
    assert all(
        any(parameter.grad is not None and parameter.grad.abs().sum() > 0 for parameter in layer.parameters())
        for layer in layer_list(student)[1]
    )


@pytest.mark.parametrize("kind", ["qwen3", "lfm2", "qwen3_next"])
def test_packed_documents_have_the_errors_that_they_have_alone(kind):
    """Also in families that compute each document as a row of its own, with padding."""
    teacher = tiny_family(kind, num_hidden_layers=4).requires_grad_(False)
    layers = next(kept for kept in ([0, 2], [0, 1]) if layers_fit(teacher, kept))
    loss = matching(teacher, layers)
    student = make_student(teacher, layers)
    packed, *alone = (loss(student, to_batch(rows)) for rows in (documents(), *([row] for row in documents())))
    for term in ("logits", "hidden"):
        assert float(packed.terms[term].sum) == pytest.approx(sum(float(each.terms[term].sum) for each in alone), rel=1e-4)


def test_layers_without_a_state_for_each_token_are_refused_with_the_remedy():
    teacher = tiny_family("qwen3", num_hidden_layers=4).requires_grad_(False)
    student = make_student(teacher, [0, 2])
    student.model.layers[0].register_forward_hook(lambda _, __, output: output[None])
    with pytest.raises(ModelError, match=r"set student\.hidden_weight to 0"):
        matching(teacher, [0, 2])(student, to_batch(documents()[:1]))


def test_a_narrower_student_matches_the_channels_that_it_keeps():
    """Channels that no layer of the teacher writes can go: a student of all layers without them has no error."""
    teacher = tiny_family("llama", num_hidden_layers=4).requires_grad_(False)
    silent = torch.arange(0, 32, 4)
    for name, weight in teacher.named_parameters():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            weight[silent] = 0
        elif name.endswith("embed_tokens.weight"):
            weight[:, silent] = 0
    said = torch.ones(32)
    said[silent] = 0
    importance = Importance(torch.ones(4, 48), torch.ones(4, 2), said)
    student = make_narrower(make_student(teacher, [0, 1, 2, 3]), Widths(hidden=24), importance)
    channels = kept_channels(importance, 24)
    assert channels.tolist() == [channel for channel in range(32) if channel % 4]
    error = matching(teacher, [0, 1, 2, 3], channels=channels)(student, to_batch(documents())).terms["hidden"]
    assert float(error.sum) / 50 < 1e-4


def run(teacher, chats, output, progress=None, **changes):
    job = Job(
        operation="distill", output=output, inputs={"teacher": teacher, "dataset": chats}, settings={**SETTINGS, **changes}
    )
    metrics = distill.run(job, progress or Progress())
    return metrics, [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]


def test_the_operation_lowers_the_error_and_reports_it(tiny_model, chats, tmp_path):
    _, lines = run(tiny_model, chats, tmp_path, steps=12, label_weight=0.2, hidden_size=16)
    assert lines[-1]["hidden_error"] < 0.8 * lines[0]["hidden_error"]
    told = [json.loads((folder / "generation_config.json").read_text())["eos_token_id"] for folder in (tmp_path, tiny_model)]
    assert told[0] == told[1]
    last = lines[-1]
    assert last["loss_hidden"] == pytest.approx(2 * last["hidden_error"], rel=1e-4)
    assert last["loss"] == pytest.approx(last["loss_logits"] + last["loss_hidden"], rel=1e-4) and "kl" in last


def test_a_stopped_run_ends_with_the_same_weights(tiny_model, chats, tmp_path):
    changes = {"on_policy": {"share": 0.5, "after": 0.0, "max_new_tokens": 8}}
    run(tiny_model, chats, tmp_path / "whole", **changes)

    class StopsAt(Progress):
        def report(self, phase, done, total, unit, **numbers):
            self.stop_requested = phase == "distill" and done == 3

    with pytest.raises(Stopped):
        run(tiny_model, chats, tmp_path / "stopped", StopsAt(), **changes)
    metrics, _ = run(tiny_model, chats, tmp_path / "stopped", **changes)
    assert metrics["resumed_from"] == 3
    whole, stopped = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "stopped"))
    assert whole.keys() == stopped.keys() and all(torch.equal(whole[name], stopped[name]) for name in whole)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"base": "/models/small"}, "base is given.*leave base out"),
        ({"label_weight": 1.0}, "no teacher is asked.*label_weight below 1"),
        ({"teacher": "cache"}, "cache, which holds no hidden states.*set teacher to online"),
        ({"teacher": "answers"}, "answers, which holds no hidden states.*set teacher to online"),
        ({"mesh": {"dp_shard": 2}}, "matched in one process.*leave mesh out"),
    ],
)
def test_settings_without_states_to_match_are_refused(given, reason):
    with pytest.raises(ValueError, match=f"hidden_weight is above 0, but.*{reason}"):
        StudentSettings(hidden_weight=1.0, **given)


def switched_on(**given):
    """(hidden_weight, on_policy.share) of resolved settings, which are the same when they are read and resolved again."""
    resolved = StudentSettings(**given).resolved()
    assert StudentSettings(**resolved.model_dump()).resolved() == resolved
    return resolved.hidden_weight, resolved.on_policy.share


def test_the_preset_matches_states_and_the_thorough_one_samples_the_second_half():
    assert switched_on() == switched_on(preset="quick") == (8.0, 0.0)
    assert switched_on(preset="thorough") == switched_on(preset="thorough", hidden_size=0.5, layers=1) == (8.0, 1.0)
    assert StudentSettings(preset="thorough").resolved().on_policy.after == 0.5


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"mesh": {"dp_shard": 2}}, (0.0, 0.0)),
        ({"teacher": "cache"}, (0.0, 0.0)),
        ({"teacher": "answers"}, (0.0, 0.0)),
        ({"label_weight": 1.0}, (0.0, 0.0)),
        ({"base": "/models/small"}, (0.0, 1.0)),
    ],
)
def test_the_preset_switches_on_nothing_that_cannot_run(given, expected):
    assert switched_on(preset="thorough", **given) == expected


def test_what_a_recipe_sets_wins_over_the_preset():
    assert switched_on(preset="thorough", hidden_weight=0.0, on_policy={"share": 0.25}) == (0.0, 0.25)
    assert switched_on(preset="thorough", on_policy={"share": 0.0, "max_new_tokens": 9}) == (8.0, 0.0)
    assert switched_on(on_policy={"share": 1.0}, hidden_weight=3) == (3.0, 1.0)
