"""Preference training against TRL 1.16 at the fastest of its settings: DPO and KTO on pairs with long and with short prompts.

    python -m benchmarks.preference_peers                  # about 40 minutes on 2 quiet cores
    python -m benchmarks.preference_peers --quick          # one round of a few pairs: the figures mean nothing
    python -m benchmarks.preference_peers --peers VENV     # an environment that holds TRL 1.16 already

Model: ../shared/models/house (10M, trained). airline: the next message of an agent after a policy and a conversation of 1,000
to 2,000 tokens, of a run that ended well against one that did not (tau_airline.json). oasst: the best ranked reply against
another one (oasst_en_100_tree.jsonl). Both trainers take the same token ids once, STEPS steps of PAIRS pairs, the same constant
learning rate, beta 0.1, AdamW, THREADS threads, and the same environment of the process (trainer_vs_trl). Products are float32
or bfloat16, whichever this processor multiplies faster. Both compute the reference before the first step.

Search: TRL without checkpointing, padded with 1, 2, 4 or all pairs of a step in a forward pass, and padding-free (DPO), two
steps each; the fastest by the clock goes on. Comparison: ROUNDS rounds of ours and TRL's, one after the other, each in a
process of its own.

KIND.WORKLOAD: speed_ratio, cpu_ratio    seconds of TRL's steps over ours, by the clock and of all threads, without the first
               reference_ratio           the same of computing the reference, by the clock
               memory_ratio              ours over TRL's largest resident size
               margin_gap                difference of mean margins over the pairs, trained with each; `margin` has both, and
               margin_noise              between two of our runs with other orders of rows
Ratios are medians over rounds, `spread` has their smallest and largest value.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.peer_environment import environment
from benchmarks.record import record
from benchmarks.trainer_vs_trl import OURS, PROJECT, SAME, THREADS
from model_ops.models.model_directory import load_tokenizer
from model_ops.preferences.preference_documents import answer_masks, read_preferences

STEPS, PAIRS, ROUNDS, SEARCHED = 4, 8, 2, 2
LEARNING_RATE, BETA, MAX_LENGTH = 1e-4, 0.1, 4_096
LONG, SHORT = (1_000, 2_000), (20, 400)
"""Tokens of prompts: airline, oasst."""
LONGEST_ANSWER = 400
PASSES = [(rows, False) for rows in (1, 2, 4, 8)] + [(rows, True) for rows in (1, 4)]
"""(pairs of a forward pass, padding-free)."""
Run = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.preference_peers", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--shared", type=Path, default=PROJECT.parent / "shared", help="holds models/house and data/")
    parser.add_argument("--peers", type=Path, help="a virtual environment with TRL 1.16; made afresh where left out")
    given = parser.parse_args()
    steps, rounds, passes = (2, 1, PASSES[2:3]) if given.quick else (STEPS, ROUNDS, PASSES)
    with tempfile.TemporaryDirectory(prefix="millrace-preference-peers-") as made:
        folder = Path(made)
        python = given.peers.resolve() / "bin/python" if given.peers else environment(folder / "peers", "trl")
        precision = _said("from model_ops.machine import faster_on; import torch; print(faster_on(torch.device('cpu')))")
        model = _model(folder, given.shared)
        figures: dict[str, Any] = {"precision": precision, "dpo": {}, "kto": {}}
        for workload, pairs, bounds in (("airline", airline, LONG), ("oasst", oasst, SHORT)):
            cell = Cell(folder / workload, model, python, precision, steps)
            cell.write(pairs(given.shared), bounds)
            for kind in ("dpo", "kto"):
                figures[kind][workload] = found = cell.compared(kind, rounds, passes)
                print(json.dumps({kind: {workload: found}}), flush=True)
        record("preference_peers", figures, keep=not given.quick)


class Cell:
    """The runs of one workload."""

    def __init__(self, folder: Path, model: Path, python: Path, precision: str, steps: int):
        self.folder, self.model, self.python, self.precision, self.steps = folder, model, python, precision, steps
        self.tokens = 0

    def write(self, pairs: Iterator[dict[str, str]], bounds: tuple[int, int]) -> None:
        """Writes the first pairs whose prompts are within the bounds, as Parquet and as token ids."""
        (self.folder / "all").mkdir(parents=True)
        rows = list(pairs)
        pq.write_table(pa.Table.from_pylist(rows), self.folder / "all" / "train.parquet")
        found = read_preferences(self.folder / "all", "train", load_tokenizer(self.model), MAX_LENGTH, "pairs", True)
        kept, lines = [], []
        for document in found.documents:
            chosen, rejected = answer_masks(document)
            prompt = int(np.argmax(chosen))
            if not bounds[0] <= prompt <= bounds[1] or max(chosen.sum(), rejected.sum()) > LONGEST_ANSWER:
                continue
            ids = document.input_ids
            sides = {"chosen_ids": ids[chosen].tolist(), "rejected_ids": ids[rejected].tolist()}
            lines.append(json.dumps({"prompt_ids": ids[:prompt].tolist(), **sides}))
            kept.append(document)
            if len(kept) == self.steps * PAIRS:
                break
        if len(kept) < self.steps * PAIRS:
            raise SystemExit(f"{self.folder.name}: {len(kept)} of {self.steps * PAIRS} pairs have prompts of {bounds} tokens")
        names = {document.row_id for document in kept}
        (self.folder / "data").mkdir()
        table = pa.Table.from_pylist([row for row in rows if row["row_id"] in names])
        pq.write_table(table, self.folder / "data" / "train.parquet")
        (self.folder / "rows.jsonl").write_text("\n".join(lines) + "\n")
        self.tokens = sum(map(len, kept))

    def compared(self, kind: str, rounds: int, passes: list[tuple[int, bool]]) -> Run:
        searched = {}
        for rows, free in passes:
            if kind == "kto" and (free or rows == 1):
                continue  # KTOTrainer has no padding-free form, and takes z0 from its batch
            try:
                searched[f"{rows}{' padding-free' if free else ''}"] = (
                    self._seconds(self._trl(kind, rows, free, SEARCHED)),
                    rows,
                    free,
                )
            except RuntimeError as error:
                searched[f"{rows}{' padding-free' if free else ''}"] = (str(error), rows, free)
        done = {name: found for name, found in searched.items() if isinstance(found[0], float)}
        if not done:
            raise SystemExit(f"TRL failed with every setting: {searched}")
        best = min(done, key=lambda name: done[name][0])
        _, rows, free = done[best]
        runs = [(self._ours(kind, 0), self._trl(kind, rows, free, self.steps)) for _ in range(rounds)]
        margins = {
            name: self._margin(self.folder / place) for name, place in (("ours", f"ours-{kind}-0"), ("trl", f"trl-{kind}"))
        }
        self._ours(kind, 1)
        again = self._margin(self.folder / f"ours-{kind}-1")
        ratios = {
            "speed_ratio": [self._seconds(trl) / self._seconds(ours) for ours, trl in runs],
            "cpu_ratio": [self._seconds(trl, "cpu_seconds") / self._seconds(ours, "cpu_seconds") for ours, trl in runs],
            "reference_ratio": [trl["reference"][0] / max(ours["reference"][0], 1e-9) for ours, trl in runs],
            "memory_ratio": [ours["peak_mb"] / trl["peak_mb"] for ours, trl in runs],
        }
        return {
            **{name: round(statistics.median(each), 3) for name, each in ratios.items()},
            "margin_gap": round(abs(margins["ours"] - margins["trl"]), 4),
            "margin_noise": round(abs(margins["ours"] - again), 4),
            "margin": {name: round(value, 4) for name, value in margins.items()},
            "spread": {name: [round(min(each), 3), round(max(each), 3)] for name, each in ratios.items()},
            "seconds_a_step": {"ours": round(self._seconds(runs[-1][0]), 3), "trl": round(self._seconds(runs[-1][1]), 3)},
            "peak_mb": {"ours": round(runs[-1][0]["peak_mb"]), "trl": round(runs[-1][1]["peak_mb"])},
            "trl_setting": best,
            "searched": {
                name: found[0] if isinstance(found[0], str) else round(found[0], 3) for name, found in searched.items()
            },
        }

    def _seconds(self, run: Run, key: str = "seconds") -> float:
        """Mean seconds of a step after the first one."""
        steady = run["steps"][1:]
        return sum(step[key] for step in steady) / len(steady)

    def _ours(self, kind: str, seed: int) -> Run:
        name = f"ours-{kind}-{seed}"
        shutil.rmtree(self.folder / name, ignore_errors=True)
        settings = {
            "loss": kind,
            "beta": BETA,
            "steps": self.steps,
            "tokens_per_step": -(-self.tokens // self.steps),
            "max_length": MAX_LENGTH,
            "learning_rate": LEARNING_RATE,
            "schedule": "constant",
            "warmup_share": 0.0,
            "checkpoint_every": 10 * self.steps,
            "seed": seed,
        }
        inputs = {"model": str(self.model), "dataset": str(self.folder / "data")}
        job = {
            "operation": "preference",
            "output": str(self.folder / name),
            "threads": THREADS,
            "inputs": inputs,
            "settings": settings,
        }
        return self._run([sys.executable, "-m", "benchmarks.our_trainer"], name, job, PROJECT, {})

    def _trl(self, kind: str, rows: int, free: bool, steps: int) -> Run:
        """Raises RuntimeError with TRL's last line where it fails. KTO takes each answer as a row of its own."""
        shutil.rmtree(self.folder / f"trl-{kind}", ignore_errors=True)
        sides = 2 if kind == "kto" else 1
        job = {
            "task": "train",
            "kind": kind,
            "model": str(self.model),
            "rows": str(self.folder / "rows.jsonl"),
            "output": str(self.folder / f"trl-{kind}"),
            "steps": steps,
            "learning_rate": LEARNING_RATE,
            "beta": BETA,
            "rows_per_pass": rows * sides,
            "passes": PAIRS // rows,
            "padding_free": free,
            "checkpointing": False,
            "bf16": self.precision == "bfloat16",
            "threads": THREADS,
            "save": steps == self.steps,
        }
        peer = str(Path(__file__).with_name("trl_preference_peer.py"))
        home = {"PYTHONPATH": "", "HF_HUB_OFFLINE": "1", "HF_HOME": tempfile.mkdtemp(dir=self.folder)}
        return self._run([str(self.python), peer], f"trl-{kind}", job, self.folder, home)

    def _run(self, command: list[str], name: str, job: Run, where: Path, more: dict[str, str]) -> Run:
        given, result = self.folder / f"{name}.json", self.folder / f"{name}.result.json"
        given.write_text(json.dumps(job))
        kept = {key: value for key, value in os.environ.items() if key not in {*SAME, *OURS, "MALLOC_ARENA_MAX", "LD_PRELOAD"}}
        done = subprocess.run(
            [*command, str(given), str(result)], cwd=where, capture_output=True, text=True, env={**kept, **SAME, **OURS, **more}
        )
        if done.returncode:
            raise RuntimeError(
                (done.stderr.strip().splitlines() or done.stdout.strip().splitlines() or ["no message"])[-1][:300]
            )
        return json.loads(result.read_text())

    def _margin(self, model: Path) -> float:
        """Mean margin of a trained model over the pairs, from the start: beta times the difference of ratios."""
        code = (
            "import sys; from pathlib import Path; import numpy as np, torch\n"
            "from model_ops.documents.documents import to_batch\n"
            "from model_ops.preferences.preference_documents import answer_masks, read_preferences\n"
            "from model_ops.losses.linear_cross_entropy import token_nll\n"
            "from model_ops.models.model_directory import load_model, load_tokenizer\n"
            f"torch.set_num_threads({THREADS}); start, trained, data = map(Path, sys.argv[1:])\n"
            f"rows = read_preferences(data, 'train', load_tokenizer(start), {MAX_LENGTH}, 'pairs', True)\n"
            "def differences(place):\n"
            "    model, found = load_model(place, dtype=torch.float32).requires_grad_(False), []\n"
            "    for document in rows.documents:\n"
            "        nll, kept = token_nll(model, to_batch([document]))\n"
            "        logs = np.zeros(len(document)); logs[kept.numpy() + 1] = -nll.numpy()\n"
            "        chosen, rejected = answer_masks(document)\n"
            "        found.append(logs[chosen].sum() - logs[rejected].sum())\n"
            "    return np.array(found)\n"
            f"print({BETA} * float((differences(trained) - differences(start)).mean()))"
        )
        return float(_said(code, str(self.model), str(model), str(self.folder / "data")))


def _model(folder: Path, shared: Path) -> Path:
    """The house model, which is said to have positions for long prompts; its rotary embedding has no limit."""
    house, model = shared / "models" / "house", folder / "model"
    if not (house / "config.json").exists():
        raise SystemExit(f"{shared} lacks models/house: give the folder that has it with --shared")
    model.mkdir()
    for path in house.iterdir():
        if path.name != "config.json":
            shutil.copyfile(path, model / path.name)
    config = {**json.loads((house / "config.json").read_text()), "max_position_embeddings": MAX_LENGTH}
    (model / "config.json").write_text(json.dumps(config))
    return model


def _pair(name: str, prompt: list[dict[str, Any]], chosen: dict[str, Any], rejected: dict[str, Any]) -> dict[str, str]:
    return {"row_id": name, "prompt": json.dumps(prompt), "chosen": json.dumps([chosen]), "rejected": json.dumps([rejected])}


def airline(shared: Path) -> Iterator[dict[str, str]]:
    """What an agent said in a run that ended well, against its words at the same turn of a run of the task that did not.
    Messages of tools are a person's here, because the small model's template has no other."""
    runs = json.loads((shared / "data" / "tau_airline.json").read_text())
    for number, run in enumerate(runs):
        other = next((each for each in runs if each["task_id"] == run["task_id"] and each["reward"] < run["reward"]), None)
        texts = [message["content"] for message in other["traj"] if _speaks(message)] if other else []
        said = [place for place, message in enumerate(run["traj"]) if _speaks(message)]
        for turn, (place, text) in enumerate(zip(said, texts, strict=False)):
            if run["traj"][place]["content"] != text:
                prompt = [
                    {"role": "user" if message["role"] == "tool" else message["role"], "content": message["content"] or ""}
                    for message in run["traj"][:place]
                ]
                yield _pair(
                    f"airline-{number}-{turn}", prompt, _said_by_agent(run["traj"][place]["content"]), _said_by_agent(text)
                )


def _speaks(message: dict[str, Any]) -> bool:
    return message["role"] == "assistant" and bool(message["content"])


def _said_by_agent(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def oasst(shared: Path) -> Iterator[dict[str, str]]:
    """The best ranked reply of each message against every other one."""
    for number, line in enumerate((shared / "data" / "oasst_en_100_tree.jsonl").read_text().splitlines()):
        yield from _ranked(json.loads(line)["prompt"], [], f"oasst-{number}")


def _ranked(node: dict[str, Any], history: list[dict[str, str]], name: str) -> Iterator[dict[str, str]]:
    here = [*history, {"role": "user" if node["role"] == "prompter" else "assistant", "content": node["text"]}]
    replies = node["replies"]
    ranked = sorted(
        (each for each in replies if each["role"] == "assistant" and each.get("rank") is not None),
        key=lambda each: each["rank"],
    )
    for place, worse in enumerate(ranked[1:]):
        yield _pair(f"{name}-{place}", here, _said_by_agent(ranked[0]["text"]), _said_by_agent(worse["text"]))
    for place, reply in enumerate(replies):
        yield from _ranked(reply, here, f"{name}.{place}")


def _said(code: str, *arguments: str) -> str:
    """The last line that a process of its own prints, so that its memory is in no figure."""
    done = subprocess.run([sys.executable, "-c", code, *arguments], cwd=PROJECT, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr.strip().splitlines()[-1])
    return done.stdout.splitlines()[-1]


if __name__ == "__main__":
    main()
