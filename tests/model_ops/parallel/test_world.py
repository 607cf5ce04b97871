"""What processes compute together beside gradients: norms of parts that some do not have, and who draws which numbers."""

import json
import signal

import pytest
import torch.distributed.run
from forked_script import forked_script
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from model_ops.parallel.launch import main


def failure(rank, code, at_s):
    one = ProcessFailure(local_rank=rank, pid=1, exitcode=code, error_file="")
    one.timestamp = at_s
    return one


def launched(monkeypatch, capsys, lives, restarts=0):
    lives = iter(lives)

    def run(_arguments):
        found = next(lives)
        if found:
            raise ChildFailedError("worker", {rank: failure(rank, code, at_s) for rank, (code, at_s) in found.items()})

    monkeypatch.setattr(torch.distributed.run, "run", run)
    code = main(["job.json", "--processes", "2", "--restarts", str(restarts)])
    return code, [json.loads(line) for line in capsys.readouterr().out.splitlines()], len(list(lives))


KILLED = {0: (1, 100), 1: (-signal.SIGKILL, 100)}


def test_a_process_that_was_killed_is_told(monkeypatch, capsys):
    code, events, _ = launched(monkeypatch, capsys, [KILLED])
    assert code == 1 and events == [{"event": "died", "rank": 1, "signal": "SIGKILL"}]


@pytest.mark.parametrize(("number", "seconds"), [(signal.SIGKILL, 110), (signal.SIGABRT, 5), (signal.SIGTERM, 0)])
def test_processes_that_end_because_another_one_said_an_error_did_not_die_of_themselves(monkeypatch, capsys, number, seconds):
    code, events, _ = launched(monkeypatch, capsys, [{0: (-number, 100 + seconds), 1: (1, 100)}], restarts=3)
    assert code == 1 and events == []


def test_all_start_again_after_a_kill_as_often_as_was_allowed(monkeypatch, capsys):
    code, events, left = launched(monkeypatch, capsys, [KILLED, KILLED, None], restarts=2)
    assert code == 0 and left == 0
    assert [event["event"] for event in events] == ["died", "warning", "restarted"] * 2
    assert events[1]["message"].startswith("process 1 of 2 ended with SIGKILL; all of them start again")
    code, events, left = launched(monkeypatch, capsys, [KILLED, KILLED, None], restarts=1)
    assert code == 1 and left == 1 and events[-1]["event"] == "died"


def test_an_error_that_was_said_is_not_tried_again(monkeypatch, capsys):
    code, events, left = launched(monkeypatch, capsys, [{1: (1, 100)}, None], restarts=3)
    assert code == 1 and events == [] and left == 1


SCRIPT = """
import json, sys
from pathlib import Path
import torch
import torch.distributed as dist
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from benchmarks.parallel import documents, on_processes, tiny
from model_ops.parallel.world import World
from model_ops.jobs import Progress, Stopped

from model_ops.tensors.batch import LossOutput
from model_ops.objectives.sft import next_token_loss
from model_ops.documents.packing import PackedPlan
from model_ops.parallel.mesh_settings import MeshSettings
from model_ops.training.settings import TrainingSettings
from model_ops.training.trainer import train

folder = Path(sys.argv[1])

def norms():
    world = World.start(MeshSettings(dp_shard=2), torch.device("cpu"))
    parts = [distribute_tensor(torch.tensor([[3.0, 4.0]]), world.mesh.fsdp, [Shard(0)])]
    return [float(world.norm(parts)), float(world.norm([*parts, distribute_tensor(torch.tensor([12.0]), world.mesh.fsdp, [Replicate()])]))]

def draws(mesh):
    settings = TrainingSettings(steps=2, learning_rate=1e-3, tokens_per_step=256, max_length=64, precision="float32",
                                dry_run=False, mesh=mesh).resolved()
    world = World.start(settings.mesh, torch.device("cpu"))
    model = tiny("qwen3", hidden=32, vocab=130)
    world.place(model, "float32")
    drawn = []
    def loss(model, batch):
        output = next_token_loss(model, batch)
        drawn.append(float(torch.rand(())))
        return LossOutput(output.terms)
    train(model, PackedPlan(documents(40, 64, 130), settings), loss, settings, folder / str(mesh.tp) / ".work", Progress(),
          "x", world=world)
    return [drawn[0], drawn[-1]]

def conducted():
    world, called = World.start(MeshSettings(dp_shard=2), torch.device("cpu")), []
    world.parts["add"] = lambda number: called.append(number) or 10 * world.rank + number
    returned = world.conduct(lambda: [world.ask("add", 1), world.ask("add", 2)])
    def stopped():
        world.ask("add", 3)
        raise Stopped
    try:
        world.conduct(stopped)
    except Stopped:
        called.append("stopped")
    return [returned, called]

def noted(name, made):
    def work():
        found = [None, None]
        dist.all_gather_object(found, made())
        if dist.get_rank() == 0:
            (folder / name).write_text(json.dumps(found))
    on_processes(2, work)
    return json.loads((folder / name).read_text())

print(json.dumps({"norms": noted("norms", norms), "conducted": noted("conducted", conducted), "rows": noted("rows", lambda: draws(MeshSettings(dp_shard=2))),
                  "matrices": noted("matrices", lambda: draws(MeshSettings(tp=2)))}))
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("world")
    return forked_script(SCRIPT, [folder], folder)


def test_a_process_that_holds_no_part_of_a_gradient_has_the_same_norm(found):
    assert found["norms"] == [[5.0, 13.0], [5.0, 13.0]]


def test_processes_with_other_rows_draw_other_numbers(found):
    one, other = found["rows"]
    assert len({*one, *other}) == 4


def test_processes_of_one_matrix_draw_the_same_numbers(found):
    one, other = found["matrices"]
    assert one == other and one[0] != one[1]


def test_the_first_process_decides_and_all_do_what_it_asks_for(found):
    """Each knows what it returned, which is the first one's; a stop of it stops all."""
    assert found["conducted"] == [[[1, 2], [1, 2, 3, "stopped"]]] * 2
