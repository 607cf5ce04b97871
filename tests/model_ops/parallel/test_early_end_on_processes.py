"""Two processes end a training early after the same step, which costs them twice the device time; a stopped run continues to
it."""

import pytest
from forked_script import forked_script

pytestmark = pytest.mark.slow

SCRIPT = """
import json, sys
from pathlib import Path
import torch.distributed as dist
from tiny_models import write_dataset, write_target
from benchmarks.parallel import on_processes
from model_ops.operations import generate, speculator
from model_ops.jobs.progress import Progress, Stopped
from model_ops.jobs.job import Job

root = Path(sys.argv[1])
write_target(root / "target")
write_dataset(root / "dataset", rows=16)
generate.run(Job(operation="generate", output=root / "answers", inputs={"target": root / "target", "dataset": root / "dataset"},
                 settings={"max_new_tokens": 16}), Progress())

class StopsAt(Progress):
    def report(self, phase, done, total, unit, **numbers):
        self.stop_requested = phase == "speculator" and done == 9 and dist.get_rank() == 1

def train(output, mesh, progress=None):
    rule = {"enabled": True, "evaluations": 6, "decode_hours_per_day": 1 / 3600, "serves_days": 1.0,
            "trained_tokens_per_second": 50.0}
    values = {"steps": 18, "schedule": "wsd", "learning_rate": 2e-3, "tokens_per_step": 256, "max_length": 256, "ttt_steps": 2,
              "precision": "float32", "num_speculative_tokens": 2, "checkpoint_every": 50, "mesh": mesh, "early_end": rule}
    job = Job(operation="speculator", output=root / output, settings=values,
              inputs={"target": root / "target", "dataset": root / "answers"})
    (root / output).mkdir(exist_ok=True)
    def work():
        try:
            metrics = speculator.run(job, progress or Progress())
        except Stopped:
            return
        rank = dist.get_rank() if dist.is_initialized() else 0
        (root / f"{output}-{rank}.json").write_text(json.dumps({name: metrics[name] for name in ("steps", "early_end")}))
    on_processes(2, work) if mesh else work()

train("one", {})
train("two", {"dp_replicate": 2})
train("cut", {"dp_replicate": 2}, StopsAt())
train("cut", {"dp_replicate": 2})
found = {path.stem: json.loads(path.read_text()) for path in root.glob("*-?.json")}
found["costs"] = {name: [line["further_costs_s"] for line in map(json.loads, (root / name / "metrics.jsonl").read_text().splitlines())
                         if "further_costs_s" in line] for name in ("one", "two", "cut")}
print(json.dumps(found))
"""


def test_processes_end_together(tmp_path):
    found = forked_script(SCRIPT, [tmp_path / "runs"], tmp_path)
    assert found["two-0"] == found["two-1"] == found["cut-0"] == found["cut-1"]
    assert found["two-0"]["steps"] == found["one-0"]["steps"] == 15
    assert (
        found["costs"]["two"] == found["costs"]["cut"] == pytest.approx([2 * each for each in found["costs"]["one"]], rel=0.1)
    )
    # not exactly: they pad their rows differently
