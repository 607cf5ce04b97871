"""Operation `rescore`: grades the kept answers of a reinforcement fine-tuning again, with another grader and without sampling.

Job inputs: `model` (its tokenizer and rollouts.parquet), `prompts` (the dataset that it answered), `reward_model` where the
grader asks for one. Output: rescored.parquet, a row for each answer with its old and its new grade."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch

from model_ops.answers import RESCORED_ROWS, AnswerReader, SampledPrompt, read_sampled_prompts
from model_ops.files import bare, renamed_when_complete
from model_ops.graders import AskedGroup, Grader
from model_ops.jobs import Job, ModelError, Progress
from model_ops.models import load_tokenizer
from model_ops.operations.rescore_settings import RescoreSettings
from model_ops.rewards import RewardModel

GROUPS_AT_ONCE = 64


def run(job: Job, progress: Progress) -> dict[str, float | int]:
    """Writes rescored.parquet; returns counts. Raises ModelError where no answers were kept, or the grader cannot work."""
    settings, model = job.settings_as(RescoreSettings), job.input("model")
    tokenizer = load_tokenizer(model)
    prompts = {each.row_id: each for each in read_sampled_prompts(job.input("prompts"), tokenizer, 2**31)[0]}
    groups = list(answer_groups(model / "rollouts.parquet"))
    asked, reader = [group for group in groups if group[0]["row_id"] in prompts], AnswerReader(tokenizer)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with ExitStack() as opened:
        loaded = RewardModel.load(job.input("reward_model"), device) if "reward_model" in job.inputs else None
        grader = opened.enter_context(Grader(settings.grader, "rft.grader", loaded))
        temporary = opened.enter_context(renamed_when_complete(job.output / "rescored.parquet"))
        writer = opened.enter_context(pq.ParquetWriter(temporary, bare(RESCORED_ROWS), compression="zstd"))
        for begin in range(0, len(asked), GROUPS_AT_ONCE):
            progress.stop_if_requested()
            progress.report("grades", begin, len(asked), "prompts")
            part = asked[begin : begin + GROUPS_AT_ONCE]
            grades = grader.grade([asked_group(prompts[group[0]["row_id"]], group, reader) for group in part])
            rows = [
                {
                    **row,
                    "old_grade": row["grade"],
                    "old_parts": row["parts"],
                    "grade": grade.value,
                    "parts": list(grade.parts.items()),
                    "problem": grade.problem,
                }
                for group, of_group in zip(part, grades, strict=True)
                for row, grade in zip(group, of_group, strict=True)
            ]
            writer.write_table(pa.Table.from_pylist(rows, schema=bare(RESCORED_ROWS)))
    return {"answers": sum(map(len, asked)), "groups_without_a_prompt": len(groups) - len(asked)}


def answer_groups(path: Path) -> Iterator[list[dict[str, Any]]]:
    """The answers that were given to a prompt together. Raises ModelError for a file that is not there, or that keeps
    no text."""
    if not path.exists() or "text" not in pq.read_schema(path).names:
        raise ModelError(f"{path} keeps no text of answers that could be graded again: train the model again")
    group: list[dict[str, Any]] = []
    for row in pq.read_table(path).to_pylist():
        if group and (row["answer"] <= group[-1]["answer"] or row["row_id"] != group[-1]["row_id"]):
            yield group
            group = []
        group.append(row)
    if group:
        yield group


def asked_group(prompt: SampledPrompt, rows: list[dict[str, Any]], reader: AnswerReader) -> AskedGroup:
    """Kept answers as a grader is asked."""
    answers = [reader.read_text(prompt, row["text"], row["tokens"], row["ended"])[0] for row in rows]
    training = {"global_step": max(row["version"] for row in rows)}
    return AskedGroup(prompt.row_id, prompt.messages, prompt.tools, prompt.columns, answers, training)
