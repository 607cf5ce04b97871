"""What int8 and int4 weights keep of Qwen2.5-Coder-0.5B-Instruct, and what making them takes, beside llm-compressor.

    python -m benchmarks.real_quantize --models DIR                   # without llm-compressor
    python -m benchmarks.real_quantize --models DIR --peers FOLDER    # with llm-compressor 0.14; FOLDER gets its environment
    python -m benchmarks.real_quantize --models DIR --quick           # 8 tasks, few rows, no AWQ, without llm-compressor

Calibration: CALIBRATION rows in a coding assistant's two kinds of traffic, half each: functions of Python's standard library,
asked for by signature and docstring, and GSM8K's training questions with their answers. Held out are HELD_OUT rows of the same
kinds: functions of other modules, and test questions. No function has a name that HumanEval asks for. Each process is alone, on
the same threads with the same allocator; time runs from loading the model to the saved directory, without imports.

int8   rounded to the nearest (w8a8); against the peer's W8A8, rounded to the nearest as well
int8_smooth   the same directory of ours against W8A8 by SmoothQuant (0.8) and GPTQ, as in the peer's int8 example
gptq, awq     int4 in groups of 128 (w4a16, W4A16), by the same method on both sides

loss        nats a token of the held-out answers: of the model in bfloat16, of ours, of the peer's; difference: ours less the
            peer's, and cost: ours less that of bfloat16, with intervals over rows. Our layers read all of them
pass_rate   share of HumanEval's tasks whose tests the greedy answer of at most MAX_NEW_TOKENS tokens passes, in the product's
            sandbox, asked and scored as its evaluation does. change: less that of bfloat16, with an interval over tasks; lost
            and won: tasks that only bfloat16, only the quantized directory passes
seconds, cpu_seconds, peak_mb   [ours, the peer's, ratio]; cpu_seconds: of processor time
"""

import ast
import json
import random
import re
import sys
import sysconfig
import tempfile
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks.peer_environment import environment
from benchmarks.real_models import LARGE, PROJECT, THREADS, answers, arguments, asked, interval, model_of, process, said
from benchmarks.record import record
from benchmarks.sft_material import gsm8k
from benchmarks.trainer_vs_trl import OURS as SAME_ALLOCATOR
from model_ops.documents import RowLoss, held_out_loss, mean_loss, tokenize
from model_ops.evaluation.likelihoods import mean_interval
from model_ops.machine import products_dtype
from model_ops.models import load_model, load_tokenizer
from model_ops.quantization import is_quantized, load_quantized
from model_ops.rendering import Row
from model_ops.tasks import UnitTestsItem, read_items, run_unit_tests
from resources.composing import EvalSettings, build_eval_suite

CALIBRATION, HELD_OUT, MAX_LENGTH = 64, 80, 512
MAX_NEW_TOKENS, BATCH, TEST_SECONDS, TEST_MEMORY_MB = 320, 82, 10, 512
QUICK_ROWS, QUICK_TASKS, QUICK_NEW_TOKENS = 8, 8, 160
OUR_METHODS = {"int8": ("w8a8", "rtn"), "gptq": ("w4a16", "gptq"), "awq": ("w4a16", "awq")}
"""Directory -> scheme and method."""
COMPARISONS = {
    "int8": ("int8", "W8A8", "rtn"),
    "int8_smooth": ("int8", "W8A8", "smoothquant_gptq"),
    "gptq": ("gptq", "W4A16", "gptq"),
    "awq": ("awq", "W4A16", "awq"),
}
"""Comparison -> our directory, the peer's scheme and method."""
FUNCTION_LINES = range(6, 41)
EACH_HELD_OUT_MODULE = 4
"""Of the modules in alphabetical order, each fourth is held out."""


class Rows(NamedTuple):
    calibration: list[Row]
    held_out: list[Row]


def drawn_rows(shared: Path, tasks: Sequence[UnitTestsItem]) -> Rows:
    """Raises OSError where shared/data lacks GSM8K."""
    avoided = {name for task in tasks for name in re.findall(r"def (\w+)", task.code)}
    modules = functions(avoided)
    apart = set(sorted(modules)[::EACH_HELD_OUT_MODULE])
    of_code = ([row for name in modules if (name in apart) == held_out for row in modules[name]] for held_out in (False, True))
    of_maths = (gsm8k(shared, split, plain=True) for split in ("train", "test"))
    drawn, counts = random.Random(0), (CALIBRATION, HELD_OUT)
    parts = [
        [row for pair in zip(*(drawn.sample(kind, count // 2) for kind in kinds), strict=True) for row in pair]
        for kinds, count in zip(zip(of_code, of_maths, strict=True), counts, strict=True)
    ]
    return Rows(*parts)


def functions(avoided: Collection[str]) -> dict[str, list[Row]]:
    """Public functions with a docstring, by module of the standard library; of several with the same name, the first."""
    modules, known = dict[str, list[Row]](), set(avoided)
    for file in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        text = file.read_text(encoding="utf-8")
        for node in ast.parse(text).body:
            if not isinstance(node, ast.FunctionDef) or node.name.startswith("_") or not ast.get_docstring(node):
                continue
            lines = (ast.get_source_segment(text, node) or "").splitlines()
            if node.name in known or len(lines) not in FUNCTION_LINES or len(node.body) < 2:
                continue
            known.add(node.name)
            head = "\n".join(lines[: (node.body[0].end_lineno or 0) - node.lineno + 1])
            question = f"Write this Python function.\n\n```python\n{head}\n```"
            answer = "```python\n{}\n```".format("\n".join(lines))
            modules.setdefault(file.stem, []).append(Row(f"{file.stem}.{node.name}", [*asked(question), said(answer)]))
    return modules


def human_eval(shared: Path, folder: Path) -> list[UnitTestsItem]:
    """HumanEval's tasks, as the product asks them."""
    build_eval_suite({"humaneval": EvalSettings(uri=str(shared / "data/HumanEval.jsonl.gz"))}, folder)
    return [item for item in read_items(folder / "tasks.jsonl") if isinstance(item, UnitTestsItem)]


class Bench:
    """max_new_tokens: of an answer to a task."""

    def __init__(self, model: Path, rows: Rows, tasks: Sequence[UnitTestsItem], folder: Path, max_new_tokens: int):
        tokenizer = load_tokenizer(model)
        self.model, self.tasks, self.folder, self.max_new_tokens = model, tasks, folder, max_new_tokens
        calibration, self.held_out = (tokenize(each, tokenizer, MAX_LENGTH)[0] for each in rows)
        self.tokens = {"calibration": sum(map(len, calibration)), "held_out": sum(each.target_tokens for each in self.held_out)}
        self.rows = folder / "rows.jsonl"
        self.rows.write_text("".join(json.dumps(each.input_ids.tolist()) + "\n" for each in calibration))

    def quantize(self, command: list[str], name: str, scheme: str, method: str, **more: str) -> dict[str, Any]:
        """One side of a comparison; writes the directory `name`."""
        output = self.folder / name
        job = {
            "threads": THREADS,
            "model": str(self.model),
            "rows": str(self.rows),
            "scheme": scheme,
            "method": method,
            "max_length": MAX_LENGTH,
            "output": str(output),
        }
        run = process(command, output, job, PROJECT, THREADS, **{**SAME_ALLOCATOR, **more})
        print(json.dumps({name: run}), flush=True)
        return run

    def losses(self, directory: Path) -> list[RowLoss]:
        dtype = products_dtype("auto", torch.device("cpu"))
        load = load_quantized if is_quantized(directory) else load_model
        found = held_out_loss(load(directory, dtype, "packed"), self.held_out)
        print(json.dumps({"loss": directory.name, "nats_per_token": mean_loss(found)}), flush=True)
        return found

    def passed(self, directory: Path) -> list[float]:
        """1 for each task that the greedy answer solves, else 0."""
        texts = answers(directory, [task.messages for task in self.tasks], self.max_new_tokens, BATCH)
        found = [
            float(run_unit_tests(task, text, TEST_SECONDS, TEST_MEMORY_MB).passed)
            for task, text in zip(self.tasks, texts, strict=True)
        ]
        print(json.dumps({"passed": directory.name, "tasks": int(sum(found))}), flush=True)
        return found


def difference(ours: Sequence[RowLoss], other: Sequence[RowLoss]) -> list[float | None]:
    """Nats a token of one directory less those of another, with an interval over rows."""
    tokens = sum(row.tokens for row in ours) / len(ours)
    return interval([(one.nll_sum - two.nll_sum) / tokens for one, two in zip(ours, other, strict=True)])


def change(ours: Sequence[float], before: Sequence[float]) -> dict[str, Any]:
    pairs = list(zip(ours, before, strict=True))
    gains = [own - other for own, other in pairs]
    ends = mean_interval(gains, -1.0, 1.0) or (None, None)
    return {
        "pass_rate": round(sum(ours) / len(ours), 4),
        "change": [round(each, 4) if each is not None else None for each in (sum(gains) / len(gains), *ends)],
        "lost": pairs.count((0.0, 1.0)),
        "won": pairs.count((1.0, 0.0)),
    }


def main() -> None:
    parser = arguments("real_quantize", __doc__)
    parser.add_argument(
        "--peers", type=Path, help="folder of llm-compressor's environment, made where missing; left out: skipped"
    )
    parser.add_argument("--shared", type=Path, default=PROJECT.parent / "shared", help="holds data/")
    given = parser.parse_args()
    model, figures = model_of(given.models, LARGE), dict[str, Any]()
    torch.set_num_threads(THREADS)
    methods = {name: how for name, how in OUR_METHODS.items() if name != "awq" or not given.quick}
    with tempfile.TemporaryDirectory(prefix="millrace-real-quantize-") as name:
        folder = Path(name)
        tasks = human_eval(given.shared, folder / "tasks")
        rows = drawn_rows(given.shared, tasks)
        if given.quick:
            tasks, rows = tasks[:QUICK_TASKS], Rows(rows.calibration[:QUICK_ROWS], rows.held_out[:QUICK_ROWS])
        bench = Bench(model, rows, tasks, folder, QUICK_NEW_TOKENS if given.quick else MAX_NEW_TOKENS)
        command = [sys.executable, "-m", "benchmarks.our_quantizer"]
        runs = {each: bench.quantize(command, each, *how) for each, how in methods.items()}
        losses = {each: bench.losses(folder / each) for each in methods}
        float_loss, float_passed = bench.losses(model), bench.passed(model)
        figures["loss"] = {"bfloat16": round(mean_loss(float_loss), 5)}
        figures["pass_rate"] = {"bfloat16": round(sum(float_passed) / len(tasks), 4)}
        for each in methods:
            figures["loss"][each] = {"ours": round(mean_loss(losses[each]), 5), "cost": difference(losses[each], float_loss)}
            figures["pass_rate"][each] = change(bench.passed(folder / each), float_passed)
            print(json.dumps({each: figures["pass_rate"][each], "loss": figures["loss"][each]}), flush=True)
        if given.peers is not None and not given.quick:
            python = environment(given.peers.resolve() / "llmcompressor", "llmcompressor")
            peer = [str(python), str(PROJECT / "benchmarks/llmcompressor_peer.py")]
            for each, (mine, scheme, method) in COMPARISONS.items():
                run = bench.quantize(peer, f"peer-{each}", scheme, method, PYTHONPATH="")
                found = bench.losses(folder / f"peer-{each}")
                figures["loss"].setdefault(each, {})["theirs"] = round(mean_loss(found), 5)
                figures["loss"][each]["difference"] = difference(losses[mine], found)
                figures[each] = {
                    what: [round(runs[mine][what], 1), round(run[what], 1), round(runs[mine][what] / run[what], 3)]
                    for what in ("seconds", "cpu_seconds", "peak_mb")
                }
                print(json.dumps({each: figures[each], "loss": figures["loss"][each]}), flush=True)
        else:
            figures |= {each: {key: round(value, 3) for key, value in run.items()} for each, run in runs.items()}
    figures |= {"tasks": len(tasks), "rows": [len(each) for each in rows], "tokens": bench.tokens, "threads": THREADS}
    record("real_quantize", figures, keep=not given.quick)


if __name__ == "__main__":
    main()
