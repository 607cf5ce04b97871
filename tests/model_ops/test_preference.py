"""Preference training: the loss over packed pairs against whole documents, and the operation from a directory to a directory."""

import json
import math
from dataclasses import replace

import architectures
import numpy as np
import pytest
import torch
from preference_rows import pair, said, verdict, write_preferences
from safetensors.numpy import load_file
from test_preference_documents import random_pair
from tiny_models import write_target

from model_ops.documents.documents import Document, Documents, to_batch
from model_ops.jobs import Job, ModelError, Progress, Stopped
from model_ops.losses.linear_cross_entropy import token_nll
from model_ops.models.model_directory import load_model, load_tokenizer
from model_ops.operations import preference
from model_ops.operations.preference_settings import PreferenceTuningSettings
from model_ops.parallel.world import World
from model_ops.preferences.held_out_preferences import HeldOutPreferences, MismatchedPlan, mismatched_answers
from model_ops.preferences.preference import ANSWER_LOSSES, PAIR_LOSSES, AnswerLogProbs, PreferenceLoss
from model_ops.preferences.preference_batches import Asked, PreferencePlan, label_starts, preference_batch, shared_batches
from model_ops.preferences.preference_documents import PAIR, Preferences, answer_masks, read_preferences
from model_ops.preferences.sampled_pairs import log_probs_of
from model_ops.training.step import optimizer_step

CPU = torch.device("cpu")


def rows_of(shares=True, pairs=4, singles=3, seed=0, **more):
    """Random pairs and single answers, with weights and confidence."""
    generator = np.random.default_rng(seed)
    documents = [random_pair(f"p{i}", shares, seed + i, beginning=20 + 3 * i, common=i)[0] for i in range(pairs)]
    for i in range(singles):
        ids = generator.integers(3, 61, 25 + i, dtype=np.int32)
        documents.append(Document(f"s{i}", ids, np.arange(len(ids)) >= 18 - i))
    count = pairs + singles
    given = {
        "weights": generator.uniform(0.5, 2, count),
        "confidence": generator.uniform(0.7, 1, count),
        "verdicts": np.array([PAIR] * pairs + [i % 2 for i in range(singles)]),
        **more,
    }
    return Preferences(Documents.gather(documents), margins=np.full(count, np.nan), reasons=[""] * count, counts={}, **given)


def whole_answers(rows):
    """(answer as a document of its own, row, desirable, place in the pair) of every answer."""
    found = []
    for row, document in enumerate(rows.documents):
        trunk = document.segments[0].length
        for side, mask in enumerate(answer_masks(document)):
            if side:
                at = document.branches[0].at
                ids = np.concatenate([document.input_ids[:at], document.input_ids[trunk:]])
                targets = np.concatenate([mask[:at], mask[trunk:]])
                targets[at] = at > 0 and mask[at]
            else:
                ids, targets = document.input_ids[:trunk], mask[:trunk]
            is_good = side == 0 if rows.verdicts[row] == PAIR else rows.verdicts[row] == 1
            found.append((Document("", ids, targets), row, bool(is_good), side))
    return found


def plainly(model, rows, reference, losses, given, z0=0.0, shift=0.0):
    """The loss by the logits of whole documents: each loss's weighted mean."""
    sums, meta, starts = [], [], label_starts(rows)
    for document, row, good, side in whole_answers(rows):
        batch = to_batch([document])
        log_p = torch.log_softmax(model(**batch.model_inputs).logits[0].double(), -1)
        at = torch.from_numpy(np.flatnonzero(document.targets[1:]))
        of_labels = log_p[at, batch.labels[at]]
        mine = answer_masks(rows.documents[row])[side][1:][rows.documents[row].targets[1:]]
        theirs = torch.from_numpy(reference[starts[row] : starts[row + 1]][mine]).double()
        sums.append((of_labels, theirs))
        meta.append((row, good, side))

    def answers(index):
        return AnswerLogProbs(
            torch.stack([sums[i][0].sum() for i in index]),
            torch.stack([sums[i][1].sum() for i in index]),
            torch.tensor([len(sums[i][0]) for i in index]),
        )

    pairs = [i for i, (row, _, side) in enumerate(meta) if rows.verdicts[row] == PAIR and side == 0]
    everything, total = list(range(len(meta))), 0.0
    sure = torch.from_numpy(rows.weights * rows.confidence)
    for name, weight in losses.items():
        if name in PAIR_LOSSES:
            noisy = name == "robust_dpo"
            mine = torch.from_numpy(rows.weights)[[meta[i][0] for i in pairs]] if noisy else sure[[meta[i][0] for i in pairs]]
            more = {"noise": 1 - torch.from_numpy(rows.confidence)[[meta[i][0] for i in pairs]]} if noisy else {}
            values = PAIR_LOSSES[name](answers(pairs), answers([i + 1 for i in pairs]), **given, **more)
            total = total + weight * (values * mine).sum() / mine.sum()
        elif name == "sft":
            good = [i for i in everything if meta[i][1]]
            mine, of = sure[[meta[i][0] for i in good]], answers(good)
            total = total + weight * (-of.policy * mine).sum() / (of.tokens * mine).sum()
        else:
            mine = sure[[row for row, _, _ in meta]]
            more = {"kto": {"z0": z0}, "bco": {"shift": shift}}.get(name, {})
            values = ANSWER_LOSSES[name](answers(everything), torch.tensor([good for _, good, _ in meta]), **more)
            of_rows = sure.sum() if name == "bco" else mine.sum()
            total = total + weight * (values * mine).sum() / of_rows
    return total


def reference_of(rows, seed=9):
    return (-3 + 0.2 * np.random.default_rng(seed).standard_normal(label_starts(rows)[-1])).astype(np.float32)


def packed(rows, reference, **more):
    return preference_batch(rows, range(len(rows.documents)), label_starts(rows), reference)


LOSSES = [*({name: 1.0} for name in (*PAIR_LOSSES, *ANSWER_LOSSES)), {"dpo": 0.8, "bco": 0.2, "sft": 1.0}]


@pytest.mark.parametrize("losses", LOSSES, ids=lambda losses: "+".join(losses))
def test_loss_and_gradient_are_those_of_whole_documents(losses):
    model, rows = architectures.build("qwen3"), rows_of()
    reference, loss = reference_of(rows), PreferenceLoss(losses, {})
    loss.shift, batch = 0.25, packed(rows, reference)
    object.__setattr__(batch, "z0", 0.7)
    output, counts = loss(model, batch), loss.counts(batch)
    ours = sum(mean.sum / mean.count for mean in output.terms.values())
    assert {name: float(mean.count) for name, mean in output.terms.items()} == {n: float(c) for n, c in counts.items()}
    wanted = plainly(model, rows, reference, losses, {}, 0.7, 0.25)
    assert float(ours.detach()) == pytest.approx(float(wanted.detach()), abs=1e-5, rel=1e-5)
    parameters = list(model.parameters())
    for one, other in zip(torch.autograd.grad(ours, parameters), torch.autograd.grad(wanted, parameters), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5 * max(1e-3, float(other.abs().max())))


def test_pairs_of_whole_contexts_give_the_same_loss():
    model = architectures.build("qwen3").requires_grad_(False)
    found = []
    for shares in (True, False):
        rows = rows_of(shares)
        # the same answers, whose labels lie elsewhere
        reference = np.concatenate([-0.01 * rows.documents[i].input_ids[1:][rows.documents[i].targets[1:]] for i in range(7)])
        output = PreferenceLoss({"dpo": 1.0, "simpo": 1.0}, {})(model, packed(rows, reference.astype(np.float32)))
        found.append({name: float(mean.sum) for name, mean in {**output.terms, **output.metrics}.items() if name != "kl"})
    assert found[0] == pytest.approx(found[1], abs=2e-5)


def test_what_is_logged_is_what_it_is_called():
    model, rows = architectures.build("qwen3").requires_grad_(False), rows_of(pairs=3, singles=0)
    reference = reference_of(rows)
    output = PreferenceLoss({"dpo": 1.0}, {"beta": 0.5})(model, packed(rows, reference))
    found = {name: float(mean.sum) / float(mean.count) for name, mean in output.metrics.items()}
    sums, starts = [], label_starts(rows)
    for document, row, _, side in whole_answers(rows):
        nll, kept = token_nll(model, to_batch([document]))
        mine = answer_masks(rows.documents[row])[side][1:][rows.documents[row].targets[1:]]
        sums.append(
            (-float(nll.double().sum()), float(reference[starts[row] : starts[row + 1]][mine].astype(float).sum()), len(kept))
        )
    chosen, rejected = sums[::2], sums[1::2]
    rewards = [[0.5 * (policy - of) for policy, of, _ in side] for side in (chosen, rejected)]
    margins = [one - other for one, other in zip(*rewards, strict=True)]
    assert found["reward_chosen"] == pytest.approx(sum(rewards[0]) / 3, abs=1e-4)
    assert found["reward_rejected"] == pytest.approx(sum(rewards[1]) / 3, abs=1e-4)
    assert found["margin"] == pytest.approx(sum(margins) / 3, abs=1e-4)
    assert found["accuracy"] == pytest.approx(sum(margin > 0 for margin in margins) / 3)
    for side, of in (("chosen", chosen), ("rejected", rejected)):
        assert found[f"logp_{side}"] == pytest.approx(sum(policy for policy, _, _ in of) / sum(n for _, _, n in of), abs=1e-4)
    whole = packed(rows, reference)
    nll, kept = token_nll(model, whole)
    moved = whole.reference[kept] + nll
    assert found["kl"] == pytest.approx(float((moved.exp() - 1 - moved).mean()), rel=1e-4)
    assert found["clipped"] == 0
    far = PreferenceLoss({"dpo": 1.0}, {})(model, packed(rows, reference - 100)).metrics
    assert float(far["clipped"].sum) == float(far["clipped"].count) and math.isfinite(float(far["kl"].sum))


def test_a_row_of_weight_two_counts_twice_and_a_doubtful_one_half():
    model = architectures.build("qwen3").requires_grad_(False)
    loss = PreferenceLoss({"dpo": 1.0}, {})

    def total(**more):
        rows = rows_of(pairs=2, singles=0, **more)
        terms = loss(model, packed(rows, reference_of(rows))).terms["dpo"]
        return float(terms.sum), float(terms.count)

    one, other = (total(weights=np.array(weights), confidence=np.ones(2)) for weights in ([1.0, 0.0], [0.0, 1.0]))
    both = total(weights=np.array([2.0, 1.0]), confidence=np.array([1.0, 0.5]))
    assert both == pytest.approx((2 * one[0] + 0.5 * other[0], 2.5))


def training(**more):
    return PreferenceTuningSettings(
        steps=2, learning_rate=1e-2, tokens_per_step=400, max_length=100, precision="float32", **more
    ).resolved()


def test_z0_and_every_mean_are_of_the_whole_step_however_it_is_cut():
    rows, world = rows_of(pairs=6, singles=6), World.alone(CPU)
    found = []
    for tokens in (100, 4_096):
        model = architectures.build("qwen3")
        settings = training(micro_batch_tokens=tokens, loss=[{"kto": 1.0}, {"dpo": 0.5}, {"sft": 0.1}])
        plan = MismatchedPlan(PreferencePlan(rows, settings, world), model, world, settings)
        plan.take({"train": reference_of(rows), "mismatched_train": np.full(label_starts(plan.mismatched)[-1], -9, np.float32)})
        batches = plan.step(0)
        assert (len(batches) > 2) == (tokens == 100) and len({batch.z0 for batch in batches}) == 1
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        numbers = optimizer_step(model, batches, PreferenceLoss(settings.losses, {}), optimizer, settings, world, "step")
        found.append(({**numbers, "z0": batches[0].z0}, [parameter.detach().clone() for parameter in model.parameters()]))
    (one, weights), (other, wanted) = found
    assert one["z0"] > 0 and one == pytest.approx(other, abs=2e-5, rel=2e-5)
    for mine, theirs in zip(weights, wanted, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6)


def test_a_mismatched_answer_is_that_of_the_next_row_with_another_prompt():
    rows = rows_of(pairs=3, singles=1)
    made = mismatched_answers(rows, 200).documents
    answers = [[document.input_ids[mask].tolist() for mask in answer_masks(document)] for document in rows.documents]
    prompts = [document.input_ids[: np.argmax(answer_masks(document)[0])].tolist() for document in rows.documents]
    for row, (other, side) in enumerate([(1, 0), (2, 1), (3, 0), (0, 1)]):
        assert made[row].input_ids.tolist() == prompts[row] + answers[other][side]
        assert made[row].target_tokens == len(answers[other][side])
    pairs = rows_of(pairs=3, singles=0)
    twice = Preferences(**{**vars(pairs), "documents": Documents.gather([rows.documents[each] for each in (0, 0, 1)])})
    for row, (prompt, other, side) in enumerate([(0, 1, 0), (0, 1, 1), (1, 0, 0)]):
        found = mismatched_answers(twice, 200).documents[row].input_ids.tolist()
        assert found == prompts[prompt] + answers[other][side], "a neighbour with the same prompt is passed over"
    alike = rows_of(pairs=2, singles=0)
    same = Preferences(**{**vars(alike), "documents": Documents.gather([alike.documents[0]] * 2)})
    assert len(mismatched_answers(same, 25).documents[0]) == 25, "an answer that does not fit is cut"


def test_z0_is_the_mean_over_prompts_of_what_model_and_reference_say_of_mismatched_answers():
    rows, world, settings = rows_of(pairs=3, singles=0), World.alone(CPU), training(loss="kto")
    model = architectures.build("qwen3").requires_grad_(False)
    plan = MismatchedPlan(PreferencePlan(rows, settings, world), model, world, settings)
    reference = np.full(label_starts(plan.mismatched)[-1], -6, np.float32)
    plan.take({"train": reference_of(rows), "mismatched_train": reference})
    ratios = [float((-token_nll(model, to_batch([document]))[0] + 6).sum()) for document in plan.mismatched.documents]
    model.train()
    [batch] = plan.step(0)
    assert sum(ratios) > 0 and batch.z0 == pytest.approx(sum(ratios) / 3, rel=1e-5) and model.training
    plan.take({"train": reference_of(rows), "mismatched_train": reference + 12})
    assert plan.step(0)[0].z0 == 0, "z0 is never below 0"


def rewards_of(model, rows, reference, members):
    """By numpy, of the answers of some rows: (log p - log reference in float64, whether it is desirable, the row's weight, and
    whether it is the row's first one)."""
    found, starts = [], label_starts(rows)
    for document, row, good, side in whole_answers(rows):
        mine = answer_masks(rows.documents[row])[side][1:][rows.documents[row].targets[1:]]
        batch = to_batch([document])
        logits = model(**batch.model_inputs).logits[0].detach().double().numpy()
        at = np.flatnonzero(document.targets[1:])
        logs = logits[at] - np.log(np.exp(logits[at]).sum(-1, keepdims=True))
        ratio = logs[np.arange(len(at)), batch.labels[at].numpy()].sum()
        ratio -= reference[starts[row] : starts[row + 1]][mine].astype(float).sum()
        found += [(ratio, good, rows.weights[row] * rows.confidence[row], side == 0)] * list(members).count(row)
    return (np.array(each) for each in zip(*found, strict=True))


def sigma(x):
    return 1 / (1 + np.exp(-x))


def learnt_steps(loss, steps=3, mismatched=-6):
    """(numbers of a step, those of rewards_of, and the ratios of mismatched answers) of a training that goes on."""
    rows, world, model = rows_of(pairs=4, singles=5), World.alone(CPU), architectures.build("qwen3")
    settings = training(loss=loss).model_copy(update={"steps": steps})
    source = plan = PreferencePlan(rows, settings, world)
    reference = reference_of(rows)
    if loss == "kto":
        source = MismatchedPlan(plan, model, world, settings)
        plain = np.full(label_starts(source.mismatched)[-1], mismatched, np.float32)
        source.take({"train": reference, "mismatched_train": plain})
    else:
        plan.take({"train": reference})
    learning, optimizer = PreferenceLoss(settings.losses, settings.given), torch.optim.SGD(model.parameters(), lr=3e-2)
    for index in range(steps):
        batches = source.step(index)
        members = [member for batch in batches for member in batch.members]
        found = list(rewards_of(model, rows, reference, members))
        others = []
        if loss == "kto":
            for member in members:
                nll, kept = token_nll(model, to_batch([source.mismatched.documents[member]]))
                others.append(-float(nll.detach().double().sum()) - mismatched * len(kept))
        numbers = optimizer_step(model, batches, learning, optimizer, settings, world, f"step {index}")
        learning.after_step(numbers)
        yield numbers, *found, np.array(others)


def test_kto_is_measured_from_a_z0_above_0_at_every_step():
    points = []
    for numbers, ratio, good, weight, _, others in learnt_steps("kto"):
        z0 = max(0.0, others.mean())
        values = np.where(good, 1 - sigma(0.1 * (ratio - z0)), 1 - sigma(0.1 * (z0 - ratio)))
        assert numbers["z0"] == pytest.approx(z0, rel=1e-4)
        assert numbers["loss"] == pytest.approx((values * weight).sum() / weight.sum(), rel=1e-5)
        points.append(z0)
        from_zero = np.where(good, 1 - sigma(0.1 * ratio), 1 - sigma(-0.1 * ratio))
        assert abs(numbers["loss"] - (from_zero * weight).sum() / weight.sum()) > 1e-2, "z0 counts"
    assert min(points) > 1 and len(set(points)) == 3, "it follows the weights"


def test_bco_shifts_by_the_running_mean_of_both_classes():
    shift, steps = 0.0, 0
    for numbers, ratio, good, weight, first, _ in learnt_steps("bco"):
        reward = 0.1 * ratio
        values = -np.log(sigma(np.where(good, reward - shift, shift - reward)))
        assert numbers["shift"] == pytest.approx(shift, rel=1e-4)
        assert numbers["loss"] == pytest.approx((values * weight).sum() / weight[first].sum(), rel=1e-5), "a mean over rows"
        mean = (reward[good].mean() + reward[~good].mean()) / 2
        steps, shift = steps + 1, (shift * steps + mean) / (steps + 1)
    assert abs(shift) > 1


def test_bcos_shift_is_the_mean_of_the_rewards_of_earlier_steps_and_part_of_a_checkpoint():
    loss = PreferenceLoss({"bco": 1.0}, {})
    for chosen, rejected in ((0.0, 0.0), (1.0, -0.4), (math.nan, 0.0), (2.0, 1.0)):
        loss.after_step({"reward_chosen": chosen, "reward_rejected": rejected})
    assert loss.shift == pytest.approx((0.0 + 0.3 + 1.5) / 3)
    again = PreferenceLoss({"bco": 1.0}, {})
    again.resume(json.loads(json.dumps(loss.state())))
    again.after_step({"reward_chosen": 1.0, "reward_rejected": 1.0})
    assert again.shift == pytest.approx((1.8 + 1.0) / 4)


def test_bcos_shift_is_of_its_own_rewards_where_another_loss_gives_those_that_are_logged():
    logged = {"reward_chosen": 5.0, "reward_rejected": 1.0}
    for losses, given, wanted in (
        ({"simpo": 1.0, "bco": 1.0}, {}, 3.0 * 0.1 / 2.5),
        ({"bco": 1.0, "simpo": 1.0}, {}, 3.0),
        ({"simpo": 1.0, "bco": 1.0}, {"beta": 0.5}, 3.0),
    ):
        loss = PreferenceLoss(losses, given)
        loss.after_step(logged)
        assert loss.shift == pytest.approx(wanted), losses


def test_the_reference_reads_every_row_also_where_a_pass_ends_within_a_step():
    rows = rows_of(pairs=5, singles=4)
    settings = training(loss="dpo").model_copy(update={"steps": None, "epochs": 2.0, "tokens_per_step": 300})
    plan = PreferencePlan(rows, settings, World.alone(CPU))
    assert len(plan.rows) % plan.rows_per_step and len(plan) > len(plan.first_pass)
    assert {member for batch in plan.asks()["train"].batches() for member in batch.members} == set(range(9))


def test_a_row_that_two_processes_read_has_its_log_probability_once(monkeypatch):
    model, rows, said_by = architectures.build("qwen3").requires_grad_(False), rows_of(pairs=3, singles=0), []

    def total(world, value):
        said_by.append(value.clone())
        return sum(said_by)

    monkeypatch.setattr(World, "total", total)
    for members in ([0, 1], [2, 0]):
        batch = preference_batch(rows, members, label_starts(rows), None)
        found = log_probs_of(model, Asked(rows, lambda batch=batch: iter([batch])), "float32", World.alone(CPU))
    plain = np.concatenate([-token_nll(model, to_batch([document]))[0].numpy() for document in rows.documents])
    assert found == pytest.approx(plain, abs=1e-5)


def test_a_silenced_batch_has_no_part_in_a_step():
    model, rows = architectures.build("qwen3"), rows_of()
    loss = PreferenceLoss({"dpo": 0.8, "bco": 0.2, "sft": 1.0, "kto": 1.0}, {})
    output = loss(model, packed(rows, reference_of(rows)).silenced())
    assert all(float(mean.sum.detach()) == 0 == float(mean.count) for mean in output.terms.values())
    assert all(float(mean.count) == 0 for name, mean in output.metrics.items() if name not in ("z0", "shift"))
    sum(mean.sum for mean in output.terms.values()).backward()
    assert not any(parameter.grad.any() for parameter in model.parameters() if parameter.grad is not None)


def test_held_out_numbers_are_those_of_all_held_out_rows_in_any_batches():
    rows, world = rows_of(pairs=5, singles=4), World.alone(CPU)
    model = architectures.build("qwen3").requires_grad_(False)
    loss, found = PreferenceLoss({"kto": 1.0, "dpo": 0.5}, {}), []
    for tokens in (60, 4_096):
        validate = HeldOutPreferences(rows, 10_000, tokens, model, loss, training(loss="kto"), world)
        asked = validate.asks()
        assert set(asked) == {"validation", "mismatched_validation"}
        assert sorted(m for batch in asked["validation"].batches() for m in batch.members) == list(range(9))
        validate.take({"validation": reference_of(rows), "mismatched_validation": np.full(500, -6, np.float32)})
        found.append(validate())
    assert found[0] == pytest.approx(found[1], abs=1e-5)
    batch = packed(rows, reference_of(rows))
    mismatched = mismatched_answers(rows, 100)
    nll = torch.cat([token_nll(model, each)[0] for each in shared_batches(mismatched, range(9), 4_096, world)])
    object.__setattr__(batch, "z0", float((6 - nll).sum()) / 9)
    output = loss(model, batch)
    assert batch.z0 > 0
    assert found[0]["validation_loss"] == pytest.approx(sum(float(m.sum / m.count) for m in output.terms.values()), abs=1e-5)
    assert found[0]["validation_margin"] == pytest.approx(float(output.metrics["margin"].sum) / 5, abs=1e-4)
    few = HeldOutPreferences(rows, 1, 4_096, model, PreferenceLoss({"bco": 1.0}, {}), training(loss="bco"), world)
    few.take({"validation": reference_of(rows)})
    assert len(few._members) == 1


@pytest.fixture(scope="module")
def material(tmp_path_factory):
    folder = tmp_path_factory.mktemp("preference")
    write_target(folder / "model", layers=2)
    for split, numbers in (("train", range(24)), ("validation", range(24, 30))):
        write_preferences(folder / "dataset", [pair(i) for i in numbers], [verdict(i, i % 3 > 0) for i in numbers], split)
    return folder


def job(material, output, dataset=None, **settings):
    return Job(
        operation="preference",
        output=output,
        inputs={"model": material / "model", "dataset": dataset or material / "dataset"},
        settings={
            "steps": 4,
            "tokens_per_step": 600,
            "max_length": 160,
            "micro_batch_tokens": 200,
            "learning_rate": 3e-3,
            "precision": "float32",
            "checkpoint_every": 2,
            "keep_checkpoints": 1,
            **settings,
        },
        threads=1,
    )


class StopAfter(Progress):
    """Asks for a stop after a step of the training."""

    def __init__(self, step):
        super().__init__()
        self.step = step

    def report(self, phase, done, total, unit, **numbers):
        self.stop_requested = phase == "preference" and done == self.step


class Listening(Progress):
    def __init__(self):
        super().__init__()
        self.heard = []

    def event(self, name, **more):
        self.heard.append(more.get("message", ""))


def lines(output):
    return [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]


def test_the_reference_of_an_adapter_is_the_start_to_the_last_bit_and_pairs_come_apart(material, tmp_path):
    metrics = preference.run(job(material, tmp_path / "out", method="lora", lora={"rank": 4}), Progress())
    steps = lines(tmp_path / "out")
    assert steps[0]["margin"] == steps[0]["reward_chosen"] == steps[0]["kl"] == 0 and steps[0]["accuracy"] == 0.5
    assert steps[0]["loss"] == steps[0]["loss_dpo"] == pytest.approx(math.log(2), abs=1e-7)
    assert steps[-1]["margin"] > 0 and metrics["validation_margin"] > 0 and metrics["validation_accuracy"] > 0.9
    assert metrics["pairs"] == 24 and (tmp_path / "out" / "adapter").is_dir()
    kept = load_file(tmp_path / "out" / ".work" / "reference.safetensors")
    model = load_model(material / "model", attention="packed").requires_grad_(False)
    rows = read_preferences(material / "dataset", "train", load_tokenizer(material / "model"), 160, "pairs", True)
    plain = [-token_nll(model, to_batch([document]))[0].numpy() for document in rows.documents]
    plain, read = np.concatenate(plain), kept["train"] != 0
    assert 0 < read.sum() < len(read), "four steps are less than a pass, and what they do not read is not computed"
    assert np.abs(plain - kept["train"])[read].max() < 1e-5


@pytest.mark.parametrize("loss", [[{"dpo": 0.8}, {"bco": 0.2}, {"sft": 1.0}], "kto"])
def test_a_stopped_training_goes_on_to_the_same_weights(material, tmp_path, loss):
    preference.run(job(material, tmp_path / "whole", loss=loss), Progress())
    with pytest.raises(Stopped):
        preference.run(job(material, tmp_path / "parts", loss=loss), StopAfter(2))
    kept = (tmp_path / "parts" / ".work" / "reference.safetensors").stat().st_mtime_ns
    preference.run(job(material, tmp_path / "parts", loss=loss), Progress())
    assert (tmp_path / "parts" / ".work" / "reference.safetensors").stat().st_mtime_ns == kept
    one, other = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "parts"))
    assert one == other
    numbers = [
        [{key: line[key] for key in ("step", "loss", "margin")} for line in lines(tmp_path / name)]
        for name in ("whole", "parts")
    ]
    assert numbers[0] == numbers[1] and len(numbers[0]) == 4


def test_a_reference_of_another_template_or_precision_is_refused(material, tmp_path):
    with pytest.raises(Stopped):
        preference.run(job(material, tmp_path / "out"), StopAfter(2))
    other = write_preferences(tmp_path / "other", [pair(i, said("yes")) for i in range(24)])
    with pytest.raises(ModelError, match=r"of other documents \(another dataset, tokenizer or chat template\)"):
        preference.run(job(material, tmp_path / "out", other), Progress())
    write_target(tmp_path / "model", layers=2, seed=1)
    moved = job(material, tmp_path / "out").model_copy(
        update={"inputs": {"model": tmp_path / "model", "dataset": material / "dataset"}}
    )
    with pytest.raises(ModelError, match="of other weights, so margins would be measured from another model"):
        preference.run(moved, Progress())


def test_losses_without_a_reference_compute_none(material, tmp_path):
    preference.run(job(material, tmp_path, loss="simpo"), Progress())
    assert not (tmp_path / ".work" / "reference.safetensors").exists() and "kl" not in lines(tmp_path)[0]


def test_rows_that_teach_nothing_are_named(material, tmp_path):
    only = write_preferences(tmp_path / "good", unpaired=[verdict(i, True) for i in range(5)])
    with pytest.raises(
        ModelError, match=r"all 5 answers are desirable, so nothing says what is better.*fine-tune on them with sft"
    ):
        preference.run(job(material, tmp_path / "out", only, loss="kto", rows="unpaired"), Progress())
    same = write_preferences(tmp_path / "same", [pair(1, said("a"), said("a")), pair(2, said("long " * 99))])
    with pytest.raises(
        ModelError, match=r"none of 2 preference rows can be learnt \(equal_answers 1, other_prompt 0, too_long 1"
    ):
        preference.run(job(material, tmp_path / "out", same), Progress())


def test_margins_that_are_not_numbers_stop_the_training_with_their_rows(material, tmp_path, monkeypatch):
    data = write_preferences(tmp_path / "data", [pair(i) for i in range(6)])
    given = PreferencePlan.take

    def broken(plan, logs):
        given(plan, logs)
        plan.reference[plan.starts[3] : plan.starts[4]] = math.nan

    monkeypatch.setattr(PreferencePlan, "take", broken)
    with pytest.raises(ModelError, match=r"preference step \d: the loss is not a finite number on rows .*pair-3"):
        preference.run(job(material, tmp_path / "out", data), Progress())


def test_a_weight_or_a_confidence_that_is_none_is_named(material, tmp_path):
    for number, wrong in enumerate(({"weight": math.nan}, {"weight": -1.0}, {"confidence": 0.0}, {"confidence": 1.5})):
        data = write_preferences(tmp_path / f"{number}", [pair(3, **wrong)])
        with pytest.raises(ModelError, match=r"row pair-3 has weight .* and confidence"):
            preference.run(job(material, tmp_path / "out", data), Progress())


def test_rows_that_are_left_out_are_noted_where_they_are_many():
    rows, heard = rows_of(pairs=4, singles=5), Listening()
    left = dict.fromkeys(preference.LEFT_OUT, 0)
    preference.note_left_out(replace(rows, counts={**left, "rows": 11, "too_long": 1, "equal_answers": 1}), heard)
    assert heard.heard == [
        "preference: 2 of 11 rows are not learnt (equal_answers 1, too_long 1): raise max_length for rows that are too long, or "
        "look at the dataset's rows"
    ]
    preference.note_left_out(replace(rows, counts={**left, "rows": 9}), few := Listening())
    assert not few.heard


def test_classes_that_ktos_authors_advise_against_are_noted(material, tmp_path):
    few, heard = write_preferences(tmp_path / "data", unpaired=[verdict(i, i > 0) for i in range(9)]), Listening()
    preference.run(job(material, tmp_path / "out", few, loss="kto", steps=1), heard)
    [said] = [message for message in heard.heard if "undesirable ones" in message]
    assert "desirable answers weigh 8.00 times the undesirable ones" in said and "set desirable_weight to 0.14" in said
    heard = Listening()
    preference.run(job(material, tmp_path / "even", few, loss="kto", steps=1, desirable_weight=0.144), heard)
    assert not any("undesirable ones" in message for message in heard.heard)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"margin": 1.0}, "margin is given, and only simpo reads it: leave margin out, or name such a loss"),
        ({"loss": "sft"}, "loss is sft alone, which compares nothing"),
        ({"rows": "unpaired"}, "rows is unpaired, and dpo compares two answers"),
        ({"loss": [{"dpo": 1}, {"dpo": 2}]}, "loss names dpo twice: add up its weights"),
        ({"loss": []}, "loss is empty: name a loss, or leave it out"),
        ({"loss": [{"dpo": 1}, {"dpoo": 1}]}, "there is no loss dpoo; there are dpo, ipo"),
        ({"loss": [{"rpo": 1}]}, r"rpo is gone: write `\[{dpo: 1}, {sft: 0.005}\]` with `beta: 0.01`, which is near it"),
    ],
)
def test_settings_that_contradict_each_other_are_one_sentence(given, sentence):
    with pytest.raises(ValueError, match=sentence):
        PreferenceTuningSettings(**given)


def test_presets_fill_what_is_left_out():
    smollm3 = PreferenceTuningSettings(preset="smollm3").resolved()
    assert (smollm3.losses, smollm3.given, smollm3.learning_rate) == ({"apo_zero": 1.0}, {"beta": 0.05}, 1e-6)
    assert PreferenceTuningSettings(preset="smollm3", loss="dpo", beta=0.2).given == {"beta": 0.2}
    many = [PreferenceTuningSettings(loss=given).losses for given in ([{"dpo": 2}, {"sft": 1}], {"dpo": 2, "sft": 1})]
    assert many == [{"dpo": 2.0, "sft": 1.0}] * 2
    assert PreferenceTuningSettings().losses == {"dpo": 1.0} and PreferenceTuningSettings().rows_read == "pairs"
    assert PreferenceTuningSettings(loss=[{"dpo": 1}, {"kto": 1}]).rows_read == "both"
    assert PreferenceTuningSettings(method="lora").resolved().learning_rate == pytest.approx(1e-4)
