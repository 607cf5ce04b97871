"""The loop: normalisation, resume, refusal of losses that are no numbers. Runs on a two-layer toy, no transformers."""

import dataclasses
import io
import json
import math

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from stop_after import StopAfter
from torch import nn
from torch.nn import functional as F

from model_ops.documents.new_rows import rows_to_learn
from model_ops.jobs import Job, ModelError, Progress, Stopped
from model_ops.parallel import MeshSettings, World
from model_ops.tensors.batch import IGNORED, Batch, one_term
from model_ops.training import TrainingSettings, train
from model_ops.training.optimizers import build_optimizer
from model_ops.training.step import optimizer_step


def dataset(folder, ids):
    folder.mkdir()
    pq.write_table(pa.table({"row_id": ids, "messages": [f"text {each}" for each in ids]}), folder / "train.parquet")
    pq.write_table(pa.table({"row_id": ["held"]}), folder / "validation.parquet")
    return folder


def learnt(tmp_path, now, before, replay):
    inputs = {"dataset": dataset(tmp_path / "now", now), "learnt": dataset(tmp_path / "before", before)}
    job = Job(operation="sft", output=tmp_path / "out", inputs=inputs, settings={}, threads=1)
    found, counts = rows_to_learn(job, replay, 0, World.start(MeshSettings()))
    return pq.read_table(found / "train.parquet"), found, counts


def test_new_rows_and_a_share_of_old_ones_in_their_order(tmp_path):
    old, new = [f"o{number}" for number in range(20)], [f"n{number}" for number in range(6)]
    table, found, counts = learnt(tmp_path, [*old, *new], old, 0.5)
    ids = table["row_id"].to_pylist()
    assert set(new) < set(ids) and len(ids) == 9 and counts == {"new_rows": 6, "replayed_rows": 3}
    assert ids == [each for each in [*old, *new] if each in ids]
    assert table["messages"].to_pylist()[0] == f"text {ids[0]}"
    assert pq.read_table(found / "validation.parquet")["row_id"].to_pylist() == ["held"]


def test_no_replay_takes_new_rows_only_and_rows_that_are_gone_are_not_replayed(tmp_path):
    table, _, counts = learnt(tmp_path, ["n1", "o1"], ["o1", "gone"], 10)
    assert sorted(table["row_id"].to_pylist()) == ["n1", "o1"] and counts == {"new_rows": 1, "replayed_rows": 1}


def test_nothing_new_is_refused(tmp_path):
    with pytest.raises(ModelError, match="nothing new to learn"):
        learnt(tmp_path, ["o1"], ["o1"], 0.5)


def test_a_training_that_continues_nothing_reads_its_dataset(tmp_path):
    job = Job(
        operation="sft", output=tmp_path / "out", inputs={"dataset": dataset(tmp_path / "now", ["a"])}, settings={}, threads=1
    )
    assert rows_to_learn(job, 0.5, 0, World.start(MeshSettings())) == (tmp_path / "now", {})


VOCAB = 19


class Toy(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(7)
        self.embed = nn.Embedding(VOCAB, 8)
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, VOCAB)

    def forward(self, ids):
        return self.head(self.norm(self.embed(ids)))


def next_token_loss(model, batch):
    kept = batch.labels != IGNORED
    losses = F.cross_entropy(model(batch.input_ids)[kept].float(), batch.labels[kept], reduction="none")
    return one_term((losses * batch.weights[kept]).sum(), batch.weights[kept].sum(), {"seen": float(kept.sum())})


def document(seed, length):
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(VOCAB, (length,), generator=generator)
    labels = ids.roll(-1)
    labels[-1] = IGNORED
    return Batch(ids, torch.arange(length), labels, torch.ones(length), [length], [f"row-{seed}"])


class Plan:
    def __init__(self, steps, poison=None):
        self.steps, self.poison = steps, poison

    def __len__(self):
        return self.steps

    def step(self, index, rank=0, ranks=1):
        batches = [document(index * 10 + k, 5 + k) for k in range(3)]
        if index == self.poison:
            batches[1] = dataclasses.replace(batches[1], weights=batches[1].weights * math.nan)
        return batches


def settings(**changes):
    values = {"steps": 12, "learning_rate": 1e-2, "checkpoint_every": 4, "precision": "float32", **changes}
    return TrainingSettings(**values).resolved()


def test_a_step_cut_into_micro_batches_has_the_gradient_of_the_whole():
    batches = [document(seed, length) for seed, length in enumerate([3, 17, 6])]
    whole = Batch(
        *(torch.cat([getattr(b, name) for b in batches]) for name in ("input_ids", "position_ids", "labels", "weights")),
        [3, 17, 6],
        ["a"],
    )
    gradients = []
    for cut in ([whole], batches):
        model = Toy()
        chosen = settings(gradient_clip=1e9)
        numbers = optimizer_step(
            model, cut, next_token_loss, build_optimizer(model, chosen), chosen, World.alone(torch.device("cpu")), "step 0"
        )
        gradients.append((numbers, [p.grad.clone() for p in model.parameters()]))
    assert gradients[0][0]["loss"] == pytest.approx(gradients[1][0]["loss"], rel=1e-6)
    for one, many in zip(gradients[0][1], gradients[1][1], strict=True):
        torch.testing.assert_close(one, many, rtol=1e-5, atol=1e-7)
    assert gradients[0][0]["seen"] == 1.0


def test_the_gradient_is_clipped_to_the_norm_asked_for():
    model, chosen = Toy(), settings(gradient_clip=1e-3)
    numbers = optimizer_step(
        model,
        [document(1, 9)],
        next_token_loss,
        build_optimizer(model, chosen),
        chosen,
        World.alone(torch.device("cpu")),
        "step 0",
    )
    norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])
    assert numbers["grad_norm"] > 1e-3
    assert float(norm) == pytest.approx(1e-3, rel=1e-3)


def test_a_stopped_run_continues_to_the_same_weights_bit_for_bit(tmp_path):
    whole, cut = Toy(), Toy()
    chosen = settings()
    straight = train(whole, Plan(12), next_token_loss, chosen, tmp_path / "a" / ".work", Progress(), "toy")
    with pytest.raises(Stopped):
        train(cut, Plan(12), next_token_loss, chosen, tmp_path / "b" / ".work", StopAfter(7), "toy")
    resumed_model = Toy()
    resumed = train(resumed_model, Plan(12), next_token_loss, chosen, tmp_path / "b" / ".work", Progress(), "toy")
    assert resumed.resumed_from == 7 and straight.resumed_from == 0
    assert resumed.loss == straight.loss
    for name, value in whole.state_dict().items():
        assert torch.equal(value, resumed_model.state_dict()[name]), name
    lines = [json.loads(line) for line in (tmp_path / "b" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, 13))
    # killed after its last step, before what it made was written
    once_more = train(Toy(), Plan(12), next_token_loss, chosen, tmp_path / "b" / ".work", Progress(), "toy")
    assert once_more.resumed_from == 12 and once_more.loss == straight.loss


def test_a_half_written_checkpoint_is_passed_over_and_two_are_kept(tmp_path):
    work = tmp_path / ".work"
    train(Toy(), Plan(12), next_token_loss, settings(), work, Progress(), "toy")
    folders = sorted((work / "checkpoints").iterdir())
    assert [folder.name for folder in folders] == ["step-00000008", "step-00000012"]
    (folders[1] / "state.json").unlink()
    again = train(Toy(), Plan(12), next_token_loss, settings(), work, Progress(), "toy")
    assert again.resumed_from == 8


def test_a_checkpoint_of_other_settings_is_refused(tmp_path):
    train(Toy(), Plan(12), next_token_loss, settings(), tmp_path / ".work", Progress(), "toy")
    with pytest.raises(ModelError, match="other settings"):
        train(Toy(), Plan(12), next_token_loss, settings(learning_rate=2e-2), tmp_path / ".work", Progress(), "toy")


def test_a_loss_that_is_no_number_names_step_and_rows_and_leaves_the_weights(tmp_path):
    model = Toy()
    before = {}

    class Spy(Progress):
        def report(self, phase, done, total, unit, **numbers):
            before.update({name: value.clone() for name, value in model.state_dict().items()})

    with pytest.raises(ModelError, match=r"toy step 2: .*row-21"):
        train(model, Plan(4, poison=2), next_token_loss, settings(), tmp_path / ".work", Spy(), "toy")
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])


def test_validation_runs_through_the_run_and_at_its_end(tmp_path):
    calls = []

    def validate():
        assert not torch.is_grad_enabled()
        calls.append(len(calls))
        return {"validation_loss": float(len(calls))}

    result = train(
        Toy(), Plan(12), next_token_loss, settings(), tmp_path / ".work", Progress(), "toy", validate=validate, validate_every=5
    )
    assert result.validation == {"validation_loss": 3.0}
    assert len(calls) == 3


@pytest.mark.parametrize(
    "precision, faster, notes",
    [
        ("bfloat16", "float32", ["toy: this machine multiplies bfloat16 slower than float32: leave precision out"]),
        ("bfloat16", "bfloat16", []),
        ("float32", "float32", []),
        ("auto", "float32", []),
    ],
)
def test_bfloat16_that_is_asked_for_on_a_slow_processor_is_told(tmp_path, monkeypatch, precision, faster, notes):
    monkeypatch.setattr("model_ops.training.trainer.faster_on", lambda device: faster)
    monkeypatch.setattr("model_ops.machine.precision.AUTO", [lambda device: faster])
    said = io.StringIO()
    result = train(
        Toy(), Plan(2), next_token_loss, settings(steps=2, precision=precision), tmp_path / "work", Progress(said), "toy"
    )
    assert result.precision == result.metrics({})["precision"] == (faster if precision == "auto" else precision)
    assert [event["message"] for event in map(json.loads, said.getvalue().splitlines()) if event["event"] == "note"] == notes
