"""Checkpoints in one process: what is saved is the moment it was asked for, damage is named, errors are not lost."""

import json
import random
import threading
import time

import numpy as np
import pytest
import torch
from safetensors import safe_open
from torch import nn
from torch.nn import functional as F

from model_ops.jobs import ModelError, Progress, Stopped
from model_ops.tensors.batch import Batch, one_term
from model_ops.training import TrainingSettings, checkpoint, train
from model_ops.training.shards import ShardReader, Snapshot

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("checkpoint")]

WIDTH = 12


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.frozen = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.one = nn.Linear(WIDTH, WIDTH)
        self.two = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x):
        return self.two(torch.tanh(self.one(self.frozen(x))))


class Plan:
    def __init__(self, steps):
        self.steps = steps

    def __len__(self):
        return self.steps

    def step(self, index, rank=0, ranks=1):
        ids = torch.arange(6) + index
        return [Batch(ids, ids, ids, torch.ones(6), [6], [f"row-{index}"])]


def loss(model, batch):
    x = F.one_hot(batch.input_ids % WIDTH, WIDTH).float()
    return one_term((model(x) - x).square().sum(), float(len(x)))


def settings(**changes):
    values = {"steps": 12, "learning_rate": 1e-2, "checkpoint_every": 3, "precision": "float32", **changes}
    return TrainingSettings(**values).resolved()


class Heard(Progress):
    """Keeps events and the weights after each step; asks for a stop after `stop` steps, or sleeps in each step."""

    def __init__(self, model=None, stop=None, sleep_s=0.0):
        super().__init__()
        self.model, self.stop, self.sleep_s, self.warnings, self.weights = model, stop, sleep_s, [], {}

    def report(self, phase, done, total, unit, **numbers):
        time.sleep(self.sleep_s)
        self.stop_requested = done == self.stop
        if self.model is not None:
            self.weights[done] = {name: value.clone() for name, value in self.model.state_dict().items()}

    def event(self, name, **fields):
        if name == "warning":
            self.warnings.append(fields["message"])


def run(work, heard=None, loss=loss, model=None, **changes):
    chosen = settings(**changes)
    model = model or Net()
    return model, train(model, Plan(chosen.steps), loss, chosen, work, heard or Progress(), "net")


def same(one, other):
    return all(torch.equal(value, other.state_dict()[name]) for name, value in one.state_dict().items())


def steps_of(work):
    return sorted(int(path.parent.name.removeprefix("step-")) for path in (work / "checkpoints").glob("step-*/state.json"))


def flip_a_bit(path, where=-1):
    data = bytearray(path.read_bytes())
    data[where] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (lambda folder: flip_a_bit(folder / "shard-00000.safetensors"), "shard-00000.safetensors is not what was written"),
        (lambda folder: flip_a_bit(folder / "tensors.json", 40), "tensors.json is not what was written"),
        (lambda folder: (folder / "state.json").write_bytes(b"\xff\xfe"), "state.json is not what was written"),
        (lambda folder: (folder / "state.json").unlink(), "still being written when its run ended"),
        *(
            pytest.param(harm, said, marks=pytest.mark.slow)
            for harm, said in (
                (
                    lambda folder: flip_a_bit(folder / "shard-00000.safetensors", 20),
                    "shard-00000.safetensors is not what was written",
                ),
                (lambda folder: flip_a_bit(folder / "state.json", 40), "state.json is not what was written"),
                (lambda folder: (folder / "state.json").write_text("[]"), "state.json is not what was written"),
                (
                    lambda folder: (folder / "shard-00000.safetensors").write_bytes(b""),
                    "shard-00000.safetensors has 0 bytes of",
                ),
                (lambda folder: (folder / "shard-00000.safetensors").unlink(), "shard-00000.safetensors is missing"),
            )
        ),
    ],
)
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_used(tmp_path, harm, said):
    whole, _ = run(tmp_path / "whole")
    with pytest.raises(Stopped):
        run(tmp_path / "cut", Heard(stop=8))
    assert steps_of(tmp_path / "cut") == [6, 8]
    harm(tmp_path / "cut" / "checkpoints" / "step-00000008")
    heard = Heard()
    model, result = run(tmp_path / "cut", heard)
    assert result.resumed_from == 6
    assert len(heard.warnings) == 1 and "step-00000008" in heard.warnings[0] and said in heard.warnings[0]
    assert same(whole, model)
    assert steps_of(tmp_path / "cut") == [9, 12], "the damaged one is no checkpoint to be kept"


def test_where_none_is_whole_the_run_starts_anew_and_says_so(tmp_path):
    whole, _ = run(tmp_path)
    for step in (9, 12):
        flip_a_bit(tmp_path / "checkpoints" / f"step-{step:08d}" / "shard-00000.safetensors")
    heard = Heard()
    model, result = run(tmp_path, heard)
    assert result.resumed_from == 0 and same(whole, model)
    assert len(heard.warnings) == 3 and "starts anew" in heard.warnings[2]


def test_every_length_of_a_torn_file_is_noticed(tmp_path):
    run(tmp_path, steps=3)
    path = tmp_path / "checkpoints" / "step-00000003" / "shard-00000.safetensors"
    whole = path.read_bytes()
    state = checkpoint.read_state(path.parent)
    for length in range(0, len(whole), max(1, len(whole) // 50)):
        path.write_bytes(whole[:length])
        assert "bytes of" in checkpoint.damage(path.parent, state["files"])


def test_what_is_saved_is_the_step_it_was_asked_for_however_slowly_it_is_written(tmp_path, monkeypatch):
    """The next updates happen while the thread has read nothing, or a part: it must not see them."""
    plain = Snapshot.chunks

    def slow(self, name):
        time.sleep(0.02)
        yield from plain(self, name)

    monkeypatch.setattr(Snapshot, "chunks", slow)
    model = Net()
    heard = Heard(model, sleep_s=0.03)
    run(tmp_path, heard, model=model, keep_checkpoints=4)
    for step in (3, 6, 9, 12):
        path = tmp_path / "checkpoints" / f"step-{step:08d}" / "shard-00000.safetensors"
        with safe_open(path, framework="pt") as saved:
            for name in ("one.weight", "one.bias", "two.weight"):
                assert torch.equal(saved.get_tensor(f"weights.{name}"), heard.weights[step][name]), (step, name)
                assert not torch.equal(saved.get_tensor(f"weights.{name}"), heard.weights[step - 1][name])


def test_a_snapshot_read_half_before_and_half_after_the_change_is_one_moment():
    values = torch.arange(20_000_000, dtype=torch.int32)
    snapshot = Snapshot({"a": values})
    chunks = snapshot.chunks("a")
    read = [bytes(next(chunks))]
    snapshot.detach()
    values.zero_()
    read += [bytes(chunk) for chunk in chunks]
    assert len(read) > 2
    assert np.array_equal(np.frombuffer(b"".join(read), np.int32), np.arange(20_000_000, dtype=np.int32))


@pytest.mark.parametrize("host_bytes", [0, 500, 10_000])
def test_copies_take_no_more_memory_than_allowed_and_the_update_waits_for_the_rest(host_bytes):
    """Four tensors of 400 bytes: the reader takes the first ones itself, the last ones are copied as far as they fit."""
    tensors = {name: torch.full((100,), float(place)) for place, name in enumerate("abcd")}
    snapshot, read, go = Snapshot(tensors, host_bytes), {}, threading.Event()

    def reader():
        go.wait()
        for name in "abcd":
            read[name] = np.frombuffer(b"".join(bytes(chunk) for chunk in snapshot.chunks(name)), np.float32)
            time.sleep(0.02)

    thread = threading.Thread(target=reader)
    thread.start()
    waited_for = {0: set("abcd"), 500: set("abc"), 10_000: set()}[host_bytes]
    if waited_for:
        threading.Timer(0.05, go.set).start()
    snapshot.detach()
    seen = set(read)
    go.set()
    for tensor in tensors.values():
        tensor.fill_(-1.0)
    thread.join()
    assert {name: set(values) for name, values in read.items()} == {"a": {0.0}, "b": {1.0}, "c": {2.0}, "d": {3.0}}
    assert seen >= waited_for - {max(waited_for, default="")} and (waited_for or not seen)


def test_an_update_does_not_wait_for_a_reader_that_failed():
    snapshot = Snapshot({"a": torch.ones(100)}, host_bytes=0)
    threading.Timer(0.05, snapshot.end).start()
    update = threading.Thread(target=snapshot.detach, daemon=True)
    update.start()
    update.join(10)
    assert not update.is_alive()


@pytest.mark.gpu
@pytest.mark.parametrize("host_bytes", [0, 1 << 27, 1 << 30])
def test_on_cuda_a_snapshot_is_one_moment_whatever_was_copied(host_bytes):
    tensors = {name: torch.full((20_000_000,), place, dtype=torch.int32, device="cuda") for place, name in enumerate("ab")}
    snapshot, read = Snapshot(tensors, host_bytes), {}

    def reader():
        for name in tensors:
            read[name] = np.unique(np.frombuffer(b"".join(bytes(chunk) for chunk in snapshot.chunks(name)), np.int32))

    thread = threading.Thread(target=reader)
    thread.start()
    snapshot.detach()
    for tensor in tensors.values():
        tensor.fill_(-1)
    thread.join()
    assert {name: list(values) for name, values in read.items()} == {"a": [0], "b": [1]}


def test_training_goes_on_while_a_checkpoint_is_written_and_only_one_is_in_flight(tmp_path, monkeypatch):
    writing, most, steps_during = [0], [0], []
    plain = checkpoint.dcp.save

    def watched(*arguments, **options):
        writing[0] += 1
        most[0] = max(most[0], writing[0])
        before = len(heard.weights)
        time.sleep(0.1)
        plain(*arguments, **options)
        steps_during.append(len(heard.weights) - before)
        writing[0] -= 1

    monkeypatch.setattr(checkpoint.dcp, "save", watched)
    heard = Heard(Net(), sleep_s=0.02)
    run(tmp_path, heard)
    assert most == [1] and steps_during[0] >= 1
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("checkpoint")]


def test_an_error_of_the_thread_is_raised_by_the_run_and_earlier_checkpoints_stay(tmp_path, monkeypatch):
    run(tmp_path, steps=3)
    plain = Snapshot.chunks

    def full(self, name):
        raise OSError(28, "No space left on device")
        yield from plain(self, name)

    monkeypatch.setattr(Snapshot, "chunks", full)
    with pytest.raises(ModelError, match=r"checkpoint of step 3 could not be written: OSError: .*No space left"):
        run(tmp_path / "full", Heard(sleep_s=0.05))
    with pytest.raises(ModelError, match="checkpoint of step 12 could not be written"):
        run(tmp_path / "last", checkpoint_every=12)
    assert steps_of(tmp_path) == [3] and steps_of(tmp_path / "full") == []


def test_a_checkpoint_in_flight_is_finished_before_a_run_ends_with_an_error(tmp_path, monkeypatch):
    publish = checkpoint.Checkpoints._publish

    def slowly(*arguments):
        time.sleep(0.5)
        publish(*arguments)

    def bad_at_five(model, batch):
        output = loss(model, batch)
        return (
            one_term(output.terms["loss"].sum * float("nan"), output.terms["loss"].count)
            if batch.row_ids == ["row-4"]
            else output
        )

    monkeypatch.setattr(checkpoint.Checkpoints, "_publish", slowly)
    with pytest.raises(ModelError, match="row-4"):
        run(tmp_path, loss=bad_at_five)
    assert steps_of(tmp_path) == [3]


def test_only_what_is_trained_is_saved_with_what_the_optimizer_keeps_of_it(tmp_path):
    run(tmp_path, steps=3)
    index = ShardReader(tmp_path / "checkpoints" / "step-00000003").index
    names = {
        f"{kind}.{name}"
        for kind in ("weights", "optimizer.exp_avg", "optimizer.exp_avg_sq", "optimizer.step")
        for name in ("one.weight", "one.bias", "two.weight")
    }
    assert set(index) == names
    state = checkpoint.read_state(tmp_path / "checkpoints" / "step-00000003")
    assert state["step"] == 3 and state["run"]["settings"]["learning_rate"] == 1e-2


@pytest.mark.parametrize(("kept", "left"), [(1, [12]), (2, [9, 12]), (3, [6, 9, 12])])
def test_as_many_checkpoints_are_kept_as_asked_for(tmp_path, kept, left):
    run(tmp_path, keep_checkpoints=kept)
    assert steps_of(tmp_path) == left


def test_a_checkpoint_is_also_written_when_the_last_one_is_old(tmp_path):
    whole, _ = run(tmp_path / "whole", checkpoint_every=100)
    assert steps_of(tmp_path / "whole") == []
    with pytest.raises(Stopped):
        run(tmp_path / "b", Heard(stop=10, sleep_s=0.05), checkpoint_every=100, checkpoint_seconds=0.12, keep_checkpoints=9)
    assert len(steps_of(tmp_path / "b")) >= 3
    model, _ = run(tmp_path / "b", checkpoint_every=100, checkpoint_seconds=0.12, keep_checkpoints=9)
    assert same(whole, model)


def test_randomness_of_every_generator_goes_on_as_if_nothing_had_happened(tmp_path):
    def noisy(model, batch):
        output = loss(model, batch)
        noise = torch.rand(()) + random.random() + np.random.rand()
        return one_term(output.terms["loss"].sum * noise, output.terms["loss"].count)

    whole, straight = run(tmp_path / "whole", loss=noisy)
    with pytest.raises(Stopped):
        run(tmp_path / "cut", Heard(stop=7), loss=noisy)
    torch.manual_seed(99)
    random.seed(99)
    np.random.seed(99)
    model, resumed = run(tmp_path / "cut", loss=noisy)
    assert resumed.resumed_from == 7 and resumed.loss == straight.loss and same(whole, model)


def test_other_settings_and_other_parameters_are_refused_by_name(tmp_path):
    run(tmp_path)
    with pytest.raises(ModelError, match=r"other settings \(weight_decay\); delete it"):
        run(tmp_path, weight_decay=0.5)
    wider = Net()
    wider.two = nn.Linear(WIDTH, WIDTH, bias=True)
    with pytest.raises(ModelError, match=r"disagree on parameter two\.bias"):
        run(tmp_path, model=wider)


def test_a_checkpoint_of_the_form_before_is_named_not_misread(tmp_path):
    folder = tmp_path / "checkpoints" / "step-00000003"
    folder.mkdir(parents=True)
    (folder / "state.json").write_text(json.dumps({"phase": "net", "step": 3}))
    heard = Heard()
    assert run(tmp_path, heard)[1].resumed_from == 0
    assert "earlier version" in heard.warnings[0]


def test_optimizer_state_that_is_no_tensor_comes_back_as_it_was(tmp_path):
    class Counting(torch.optim.SGD):
        def step(self, closure=None):
            super().step(closure)
            for group in self.param_groups:
                for parameter in group["params"]:
                    state = self.state[parameter]
                    state["seen"] = state.get("seen", 0) + 1
                    state["small"] = torch.full((2,), state["seen"], dtype=torch.bfloat16)

    model = Net()
    optimizer = Counting([p for p in model.parameters() if p.requires_grad], lr=0.1, momentum=0.9)
    run_of = {"phase": "net", "settings": {}, "steps": 9}
    from model_ops.parallel.world import World
    from model_ops.training.checkpoint import Checkpoints

    world = World.alone(torch.device("cpu"))
    writing = Checkpoints(tmp_path, model, optimizer, run_of, settings(), world, Progress())
    for done in (1, 2, 3):
        loss(model, Plan(3).step(done)[0]).terms["loss"].sum.backward()
        optimizer.step()
        writing.after_step(done, {"kept": [done, 0.1]})
    writing.wait()
    other = Net()
    again = Counting([p for p in other.parameters() if p.requires_grad], lr=0.1, momentum=0.9)
    assert Checkpoints(tmp_path, other, again, run_of, settings(), world, Progress()).load() == (3, {"kept": [3, 0.1]})
    for mine, theirs in zip(optimizer.state.values(), again.state.values(), strict=True):
        assert theirs["seen"] == 3 and theirs["small"].tolist() == [3.0, 3.0]
        assert torch.equal(mine["momentum_buffer"], theirs["momentum_buffer"])
