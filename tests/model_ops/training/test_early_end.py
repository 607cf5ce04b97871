"""A training that ends early: at the same step with the same weights after any interruption, with a learning rate that fell."""

import io
import json
import math
from itertools import pairwise

import pytest
import torch
from stop_after import StopAfter
from torch import nn
from torch.nn import functional as F

from model_ops.jobs.errors import ModelError
from model_ops.jobs.progress import Progress, Stopped
from model_ops.operations.sft_settings import SftSettings
from model_ops.speculators.eagle3.architecture import Eagle3Settings
from model_ops.tensors.batch import IGNORED, Batch
from model_ops.tensors.loss import one_term
from model_ops.training.early_end import EarlyEnd
from model_ops.training.early_end_settings import EarlyEndOfDrafter, EarlyEndOfModel
from model_ops.training.schedules import RunSchedule, cooled_learning_rate, learning_rate_at
from model_ops.training.settings import TrainingSettings
from model_ops.training.trainer import train
from model_ops.training.validation import plan_validation

VOCAB, STEPS, EVERY = 11, 60, 4


class Toy(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(7)
        self.embed, self.head = nn.Embedding(VOCAB, 8), nn.Linear(8, VOCAB)

    def forward(self, ids):
        return self.head(self.embed(ids))


def loss(model, batch):
    kept = batch.labels != IGNORED
    losses = F.cross_entropy(model(batch.input_ids)[kept].float(), batch.labels[kept], reduction="none")
    return one_term(losses.sum(), batch.weights[kept].sum(), {})


def counting(start):
    """Tokens that count up, so that the toy can learn the next one and then has nothing left to learn."""
    ids = (torch.arange(20) + start) % VOCAB
    labels = ids.roll(-1)
    labels[-1] = IGNORED
    return Batch(ids, torch.arange(20), labels, torch.ones(20), [20], [f"row-{start}"])


class Plan:
    def __len__(self):
        return STEPS

    def step(self, index, rank=0, ranks=1):
        return [counting(index)]


def settings(**changes):
    values = {
        "steps": STEPS,
        "learning_rate": 5e-2,
        "schedule": "wsd",
        "checkpoint_every": 7,
        "precision": "float32",
        **changes,
    }
    return TrainingSettings(**values).resolved()


def rule(**changes):
    """A device hour has to bring 60 nats, and a step of 20 tokens takes a second."""
    return EarlyEndOfModel(**{"enabled": True, "nats_per_device_hour": 60.0, "trained_tokens_per_second": 20.0, **changes})


def trained(work, stop, progress=None, **changes):
    """The model and its result."""
    model = Toy()
    held_out = counting(5)

    def validate():
        kept = held_out.labels != IGNORED
        return {"validation_loss": float(F.cross_entropy(model(held_out.input_ids)[kept], held_out.labels[kept]))}

    result = train(
        model, Plan(), loss, settings(**changes), work / ".work", progress or Progress(), "toy", validate, EVERY, early_end=stop
    )
    return model, result


def lines(work):
    return [json.loads(line) for line in (work / "metrics.jsonl").read_text().splitlines()]


def test_a_training_ends_once_an_interval_brings_too_little_and_says_why(tmp_path):
    said = io.StringIO()
    _, result = trained(tmp_path, rule(), Progress(said))
    assert EVERY * 4 < result.steps < STEPS
    assert result.early_end.startswith(f"ended after {result.steps} of 60 steps, ") and "nats a device hour" in result.early_end
    assert result.early_end in said.getvalue()
    assert result.metrics({})["early_end"] == result.early_end
    written = lines(tmp_path)
    assert len(written) == result.steps and "validation_loss" in written[-1]
    weighed = [line for line in written if "further_costs_s" in line]
    *before, last = weighed
    assert before
    assert last["further_saves_s"] <= last["further_costs_s"]
    assert all(line["further_saves_s"] > line["further_costs_s"] for line in before)
    assert result.steps == last["step"] + math.ceil(last["step"] * 0.25)  # the fall is a fifth of all steps
    assert last["further_costs_s"] == pytest.approx(
        EVERY * result.steps / last["step"], abs=1e-3
    )  # a second a step, and its fall


def test_the_learning_rate_falls_to_its_floor_before_the_end(tmp_path):
    _, result = trained(tmp_path, rule())
    rates = [line["learning_rate"] for line in lines(tmp_path)]
    ended = result.steps - math.ceil(0.2 * result.steps)
    assert rates[ended - 1] == pytest.approx(5e-2) and rates[-1] == pytest.approx(5e-3)
    assert all(one > other for one, other in pairwise(rates[ended - 1 :]))


@pytest.mark.parametrize("stop_after", [6, 17, 20, 23])
def test_a_continued_run_ends_at_the_same_step_with_the_same_weights(tmp_path, stop_after):
    """Also where a run would look up other numbers now: those of its checkpoint count."""
    whole, straight = trained(tmp_path / "a", rule())
    assert stop_after < straight.steps
    with pytest.raises(Stopped):
        trained(tmp_path / "b", rule(), StopAfter(stop_after))
    model, resumed = trained(tmp_path / "b", rule(trained_tokens_per_second=1e9))
    assert resumed.resumed_from == stop_after
    assert (resumed.steps, resumed.early_end, resumed.validation) == (straight.steps, straight.early_end, straight.validation)
    for name, value in whole.state_dict().items():
        assert torch.equal(value, model.state_dict()[name]), name


def test_a_run_that_was_killed_after_its_early_end_trains_no_further_step(tmp_path):
    _, straight = trained(tmp_path, rule(), checkpoint_every=1)
    _, again = trained(tmp_path, rule(), checkpoint_every=1)
    assert again.resumed_from == straight.steps == again.steps
    assert again.validation == straight.validation and again.loss == straight.loss


def test_other_declared_numbers_of_the_rule_are_refused_by_its_checkpoint(tmp_path):
    with pytest.raises(Stopped):
        trained(tmp_path, rule(), StopAfter(6))
    with pytest.raises(ModelError, match=r"other settings \(early_end\)"):
        trained(tmp_path, rule(nats_per_device_hour=7.0))


def test_without_the_rule_nothing_changes(tmp_path):
    model, off = trained(tmp_path / "a", None)
    other, disabled = trained(tmp_path / "b", rule(enabled=False))
    assert off.steps == disabled.steps == STEPS and off.early_end == disabled.early_end == ""
    assert "early_end" not in off.metrics({}) and not any("further_gain" in line for line in lines(tmp_path / "b"))
    for name, value in model.state_dict().items():
        assert torch.equal(value, other.state_dict()[name])


@pytest.mark.parametrize(
    ("stop", "said"),
    [
        (rule(trained_tokens_per_second=None), "what an interval costs is unknown before this stage was trained once"),
        (EarlyEndOfDrafter(enabled=True, trained_tokens_per_second=10.0), "what decoding a day's answers takes is unknown"),
    ],
)
def test_a_training_that_cannot_be_weighed_is_trained_to_its_end_and_says_why(tmp_path, stop, said):
    _, result = trained(tmp_path, stop)
    assert result.steps == STEPS and result.early_end.startswith("trained to its end: ") and said in result.early_end


def test_without_held_out_rows_it_says_so(tmp_path):
    result = train(Toy(), Plan(), loss, settings(), tmp_path / ".work", Progress(), "toy", early_end=rule())
    assert result.steps == STEPS and "no held-out rows" in result.early_end


def test_an_interval_that_is_always_worth_it_ends_nothing(tmp_path):
    _, result = trained(tmp_path, rule(nats_per_device_hour=1e-9))
    assert result.steps == STEPS and "no interval that was weighed costs more" in result.early_end


def schedule_of(stop, devices=1, **changes):
    """A run of 100 steps with an evaluation every 5."""
    return RunSchedule(settings(steps=100, **changes), 100, EarlyEnd(stop, 5, devices))


def after(run, values, tokens=100):
    """Steps after which the rule ended a run of these evaluations, one every 5 steps."""
    for done in range(1, run.steps + 1):
        run.after_step(done, tokens, {"validation_expected_tau": values[done // 5 - 1]} if done % 5 == 0 else None)
        if run.last < run.steps:
            return done
    return None


def drafter_rule(**changes):
    return EarlyEndOfDrafter(
        **{"enabled": True, "decode_hours_per_day": 2.5, "serves_days": 10.0, "trained_tokens_per_second": 1.0, **changes}
    )


def test_a_drafter_is_trained_for_its_least_share_and_on_more_devices_for_less_long():
    curve = [2 + 0.1 * math.log2(place) for place in range(1, 21)]
    ended = [
        after(schedule_of(drafter_rule(**changes), devices), curve)
        for devices, changes in ((1, {}), (4, {}), (1, {"least_share": 0.7}), (1, {"decode_hours_per_day": 1e6}))
    ]
    assert None not in ended[:3] and ended[1] < ended[0] < ended[2] == 70 and ended[3] is None


def test_a_training_whose_rest_is_its_fall_is_not_ended():
    assert after(schedule_of(drafter_rule(least_share=0.8)), [2.0] * 20) is None


def test_a_constant_schedule_ends_at_once():
    early = schedule_of(drafter_rule(), schedule="constant")
    ended = after(early, [2.0 + 1e-9 * place for place in range(20)])
    assert ended == early.last == 25 and "falls" not in early.says
    assert early.says.startswith("ended after 25 of 100 steps: 5 further steps would cost ")
    assert early.says.endswith(" of a device, and not raise the expected acceptance length of 2.000")


def test_a_loss_that_rises_is_said_to_get_no_lower():
    early = schedule_of(rule(), schedule="constant")
    for done in range(1, 26):
        early.after_step(done, 20, {"validation_loss": 1 + done / 10} if done % 5 == 0 else None)
    assert early.last == 25 and early.says.endswith(" of a device, and not lower the held-out loss of 3.5000 nats a token")


def test_an_evaluation_without_a_number_is_no_point():
    early = schedule_of(drafter_rule())
    assert after(early, [math.nan] * 20) is None and early.state()["early_end"]["points"] == []
    assert early.says.startswith(
        "trained to its end: nothing was weighed, which takes 4 evaluations that measure validation_expected_tau"
    )


@pytest.mark.parametrize("schedule", ["cosine", "wsd", "linear", "constant"])
def test_the_fall_begins_where_the_schedule_was_and_never_rises(schedule):
    chosen = settings(steps=100, schedule=schedule)
    rates = [cooled_learning_rate(step, 60, 75, 100, chosen) for step in range(60, 75)]
    before = learning_rate_at(59, 100, chosen)
    assert before >= rates[0] and all(one >= other for one, other in pairwise(rates))
    assert rates[-1] == pytest.approx(min(before, 5e-3)) and rates[-1] < before


def test_evaluations_are_as_many_as_asked_for_within_the_budget_of_validation():
    chosen = SftSettings(steps=1_000, tokens_per_step=65_536).resolved()
    plan = plan_validation(1_000, chosen, rule(evaluations=20))
    assert plan.every == 50 and plan.tokens == 50_000
    small = plan_validation(40, SftSettings(steps=40, tokens_per_step=2_048).resolved(), rule())
    assert small.every == 4 and 10 * small.tokens <= 0.1 * 40 * 2_048
    assert plan_validation(1_000, chosen, rule(enabled=False)) == plan_validation(1_000, chosen)


def test_what_a_lower_loss_is_worth_has_to_be_said():
    with pytest.raises(ValueError, match="nats_per_device_hour is left out, so nothing says what a lower loss is worth"):
        EarlyEndOfModel(enabled=True)
    with pytest.raises(ValueError, match="greater than or equal to 5"):
        EarlyEndOfDrafter(evaluations=2)
    assert not SftSettings().early_end.enabled and not Eagle3Settings().early_end.enabled
