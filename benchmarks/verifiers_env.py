"""Whether a public taskset of prime-rl's verifiers and an agent of OpenAI's library, both unmodified, give rollouts that train.

    python -m benchmarks.agents_environment                                          # once: the libraries
    python -m benchmarks.verifiers_env --shared ../shared --tasksets DIR             # about 4 minutes on 2 idle cores
    python -m benchmarks.verifiers_env --shared ../shared --tasksets DIR --quick     # one step each; nothing is recorded

DIR holds `reverse_text/` of verifiers' repository (environments/reverse_text), as it is published: the taskset that prime-rl's
first example trains. Its data here are words of four letters, which it reads from a directory that its own configuration names.
Its harness `null` asks through verifiers' own interception server, and its reward is the share of letters in their order.

agent: `benchmarks/animals_agent.py`, written with the openai library: one tool, streamed and not, two to three turns.

The house model learns the form of answers by START_STEPS steps of fine-tuning, and then by STEPS steps of `rft`. rollouts:
those of the training. trained_steps: steps with a gradient, of STEPS. canary_gap: largest of a sync, in nats per token.
reward: mean of the first and the last step. failed: rollouts without a grade because something broke.

Last line: {taskset: {...}, openai_agent: {rollouts, trained_steps, canary_gap, reward, turns, failed, seconds}}.
"""

import argparse
import hashlib
import json
import os
import random
import tempfile
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import torch

from benchmarks.agents_environment import agents_python
from benchmarks.real_models import PROJECT, said, write
from benchmarks.record import record
from model_ops.environments import write_taskset
from model_ops.jobs import Job, Progress
from model_ops.operations import rft, sft

THREADS, SEED = 2, 0
START_ROWS, START_STEPS, PROMPTS, STEPS = 240, 30, 32, 4
AGENT = Path(__file__).with_name("animals_agent.py")
ANIMALS = ("cat", "dog", "hen", "cow", "pig", "bee")
LOOK = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Looks into a box.",
        "parameters": {"type": "object", "properties": {"box": {"type": "integer"}}, "required": ["box"]},
    },
}
"""As the agent sends it."""


def words(count: int, seed: int) -> list[str]:
    drawn = random.Random(seed)
    return ["".join(drawn.choice("abcdef") + " " for _ in range(4)).strip() for _ in range(count)]


class Doors:
    """The start, and a training through each of the two."""

    def __init__(self, house: Path, folder: Path, python: Path, quick: bool):
        self.house, self.folder, self.python = house, folder, python
        self.start_steps, self.steps = (4, 1) if quick else (START_STEPS, STEPS)

    def taskset(self) -> dict[str, Any]:
        data = self.folder / "words"
        data.mkdir()
        lines = [json.dumps({"prompt": text}) for text in words(PROMPTS, SEED + 1)]
        (data / "train.jsonl").write_text("\n".join(lines))
        env = {"taskset": {"id": "reverse-text", "dataset_name": str(data)}}
        write_taskset(env, self.folder / "tasks.jsonl", PROMPTS, str(self.python))
        rows = [json.loads(line) for line in (self.folder / "tasks.jsonl").read_text().splitlines()]
        system = rows[0]["messages"][0]
        chats = [
            [system, {"role": "user", "content": text}, said(f"<reversed_text>{text[::-1]}</reversed_text>")]
            for text in words(START_ROWS, SEED)
        ]
        start = self.started("reverse", [{"messages": json.dumps(chat)} for chat in chats])
        prompts = [
            {
                "messages": json.dumps(row["messages"]),
                "verifier": json.dumps({"kind": "record", "record": {**row, "messages": None}}),
            }
            for row in rows
        ]
        return self.trained("reverse", start, prompts, "verifiers", prompts_per_step=2, answers=4, max_new_tokens=32)

    def agent(self) -> dict[str, Any]:
        drawn = random.Random(SEED)
        chats, prompts = [], []
        for number in range(START_ROWS + PROMPTS):
            box, animal = drawn.randrange(1, 10), drawn.choice(ANIMALS)
            user = {"role": "user", "content": f"Which animal is in box {box}?"}
            call = {"id": "call00000", "type": "function", "function": {"name": "look", "arguments": json.dumps({"box": box})}}
            told = {"role": "tool", "tool_call_id": "call00000", "content": f"a {animal}"}
            turns = [user, {**said(""), "tool_calls": [call]}, told, said(animal)]
            chats.append({"messages": json.dumps(turns), "tools": json.dumps([LOOK])})
            item = {"kind": "record", "record": {"box": box, "animal": animal, "streams": number % 2 == 0}}
            prompts.append({"messages": json.dumps([user]), "verifier": json.dumps(item)})
        start = self.started("animals", chats[:START_ROWS])
        return self.trained(
            "animals", start, prompts[START_ROWS:], f"{AGENT}:run", prompts_per_step=4, answers=4, max_new_tokens=24
        )

    def started(self, name: str, rows: list[dict[str, Any]]) -> Path:
        """The house model after some steps on the rows."""
        write([{"row_id": str(place), **row} for place, row in enumerate(rows)], self.folder / f"{name}-rows")
        settings = {"steps": self.start_steps, "learning_rate": 3e-4, "tokens_per_step": 1_536, "validation_tokens": 500}
        self._done(sft, {"model": self.house, "dataset": self.folder / f"{name}-rows"}, f"{name}-start", settings)
        return self.folder / f"{name}-start"

    def trained(self, name: str, start: Path, prompts: list[dict[str, Any]], agent: str, **settings: int) -> dict[str, Any]:
        write([{"row_id": f"{name}-{place}", **row} for place, row in enumerate(prompts)], self.folder / f"{name}-prompts")
        given = {
            "agent": agent,
            "python": str(self.python),
            "steps": self.steps,
            "learning_rate": 3e-5,
            "max_turns": 4,
            "held_out_prompts": 0,
            "overlong": "none",
            **settings,
        }
        began_s = time.monotonic()
        numbers = self._done(rft, {"model": start, "prompts": self.folder / f"{name}-prompts"}, name, given)
        steps = [json.loads(line) for line in (self.folder / name / "metrics.jsonl").read_text().splitlines()]
        steps = [each for each in steps if "reward" in each]
        rows = pq.read_table(self.folder / name / "rollouts.parquet")
        return {
            "rollouts": numbers["rollouts"],
            "trained_steps": sum(each["grad_norm"] > 0 for each in steps),
            "canary_gap": max(each.get("canary_gap", 0.0) for each in steps),
            "reward": [round(numbers["first_grade"], 3), round(numbers["last_grade"], 3)],
            "sampled_tokens": numbers["sampled_tokens"],
            "failed": numbers["failed_grades"],
            "parts": sorted({part for each in rows["parts"].to_pylist() for part, _ in each or ()}),
            "seconds": round(time.monotonic() - began_s, 1),
        }

    def _done(self, operation: Any, inputs: dict[str, Path], name: str, settings: dict[str, Any]) -> dict[str, Any]:
        given = {"max_length": 512, "precision": "float32", "seed": SEED, "checkpoint_every": 10**6, **settings}
        named = operation.__name__.rpartition(".")[2]
        job = Job(operation=named, inputs=inputs, output=self.folder / name, settings=given, threads=THREADS)
        return operation.run(job, Progress())


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.verifiers_env", description=__doc__.splitlines()[0])
    parser.add_argument("--shared", type=Path, default=PROJECT.parent / "shared", help="folder with models/house")
    parser.add_argument("--tasksets", type=Path, required=True, help="folder with reverse_text of verifiers' repository")
    parser.add_argument("--quick", action="store_true", help="one step each; nothing is recorded")
    given = parser.parse_args()
    torch.set_num_threads(THREADS)
    taskset = given.tasksets.resolve() / "reverse_text/taskset.py"
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(taskset.parents[1]), os.environ.get("PYTHONPATH"))))
    with tempfile.TemporaryDirectory(prefix="millrace-verifiers-env-") as name:
        doors = Doors(given.shared.resolve() / "models/house", Path(name), agents_python(), given.quick)
        figures = {"openai_agent": doors.agent()}
        print(json.dumps(figures), flush=True)
        figures["taskset"] = doors.taskset() | {"sha256": hashlib.sha256(taskset.read_bytes()).hexdigest()[:12]}
    record("verifiers_env", figures, keep=not given.quick)


if __name__ == "__main__":
    main()
