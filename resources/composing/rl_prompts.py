"""Builds the dataset of prompts with data to verify an answer. `verifier` is the item of a logged RFT line, or a task's kind
(model_ops/tasks/) and what it needs. Splits as those of `datasets.sft`. A prompt is taken once, but for records for an
environment or an agent; tasks with different right answers to one prompt, and items of evaluation suites, are left out."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from model_ops.jobs import counted
from model_ops.tasks import final_number
from resources.composing.dataset_card import SPLITS, write_plain_card
from resources.composing.dataset_settings import ALL_ROWS, DatasetError, DatasetSettings, RlPromptSettings
from resources.composing.eval_suite import EvalSettings, build_eval_suite
from resources.curating import MACROS, Decontamination, find_items, read_eval_items
from resources.lake import Tables, attach_slice, run, stream, workbench, write_rows
from resources.manifests import SCRATCH

_TASKS = pa.schema(
    [
        ("row_id", pa.string()),
        ("origin", pa.string()),
        ("source", pa.string()),
        ("workload", pa.string()),
        ("messages", pa.string()),
        ("tools", pa.string()),
        ("verifier", pa.string()),
        ("interaction_ids", pa.list_(pa.string())),
        ("split_group", pa.string()),
        ("state", pa.string()),
        ("right_answer", pa.string()),
    ]
)
_LENT = pa.schema([("split", pa.string()), ("drawn", pa.string())])
_CONTAMINATED = pa.schema([("interaction_id", pa.string())])


def build_rl_prompts(
    tables: Tables,
    workload: str,
    output: Path,
    settings: RlPromptSettings,
    split_settings: DatasetSettings,
    eval_items: Path,
    decontamination: Decontamination,
    about: Mapping[str, Any] | None = None,
    lent: Mapping[str, list[str]] | None = None,
) -> dict[str, Any]:
    """Fills `output` and returns counts. lent: of sft_dataset. Raises DatasetError if there is no prompt to train on,
    EvalSuiteError for a file of tasks that cannot be read."""
    output.mkdir(parents=True, exist_ok=True)
    items = read_eval_items(eval_items)
    with workbench() as connection:
        for name in ("interactions", "cleaned_interactions"):
            attach_slice(connection, tables, name, workload)
        unread: list[str] = []
        connection.register("task_prompts", _task_prompts(settings.tasks, workload, output / SCRATCH, unread))
        held = [{"split": split, "drawn": drawn} for split, names in (lent or {}).items() for drawn in names]
        connection.register("lent_before", pa.Table.from_pylist(held, schema=_LENT))
        for macro in MACROS:
            run(connection, macro)
        run(connection, "composing/rl_prompts/logged_prompts", split_by=split_settings.split_by)
        run(connection, "composing/rl_prompts/all_prompts")
        run(
            connection,
            "composing/rl_prompts/prompt_rows",
            seed=str(split_settings.seed),
            test_share=split_settings.test_share,
            validation_share=split_settings.validation_share,
        )
        if decontamination.enabled and len(items):
            connection.register("eval_items", items)
            run(connection, "composing/rl_prompts/searched_rows")
            find_items(connection, decontamination)
        else:
            connection.register("contaminated", _CONTAMINATED.empty_table())
        left_out = run(connection, "composing/rl_prompts/count_contaminated").fetchall()[0][0]
        repeated, contradictory, examples = run(connection, "composing/rl_prompts/left_out_tasks").fetchall()[0]
        counts = {
            split: write_rows(
                stream(
                    connection,
                    "composing/rl_prompts/split_rows",
                    split=split,
                    seed=str(split_settings.seed),
                    max_rows=settings.max_rows or ALL_ROWS,
                ),
                output / f"{split}.parquet",
            )
            for split in SPLITS
        }
    if not counts["train"]:
        raise DatasetError(
            f"no prompt with data to verify an answer for training: {left_out} hold evaluation items, {contradictory} are "
            "contradictory; log RFT lines, name files under datasets.rl_prompts.tasks, or leave datasets.rl_prompts out"
        )
    notes = [f"{counted(repeated, 'prompt')} left out, because they stand elsewhere too"] if repeated else []
    notes += unread
    if contradictory:
        named = ", ".join(examples) + (", ..." if contradictory > len(examples) else "")
        notes.append(f"{counted(contradictory, 'task')} left out, because others give the same prompt another answer: {named}")
    return {
        "rows": counts,
        "contaminated": left_out,
        "repeated": repeated,
        "contradictory": contradictory,
        "notes": notes,
        **write_plain_card(
            output,
            "Prompts with data to verify an answer, for reinforcement fine-tuning. Verifier data is as it was given.",
            about or {},
            [f"- {note}" for note in notes],
        ),
    }


def _task_prompts(tasks: dict[str, EvalSettings], workload: str, scratch: Path, notes: list[str]) -> pa.Table:
    """The tasks of files as prompts. A function that grades gets the other keys of a line as columns. `notes` gets a sentence
    for each file with keys that no prompt holds."""
    prompts = []
    if tasks:
        build_eval_suite(tasks, scratch, keep_keys=True, notes=notes)
        text = (scratch / "tasks.jsonl").read_text(encoding="utf-8")
        for line in filter(None, text.split("\n")):  # splitlines() would end lines at U+2028, too
            task = json.loads(line)
            suite, item, messages, tools, keys = (
                task.pop(name, None) for name in ("suite", "item_id", "messages", "tools", "keys")
            )
            record = task.get("record")
            right: Any = {key: value for key, value in task.items() if key != "record"}
            if record is not None:
                keys = {}  # it has them all
            if task["kind"] == "number":
                right = str(final_number(task["answer"]))
                keys.setdefault("ground_truth", right)  # what a function in the form of verl compares with
            prompts.append(
                {
                    "row_id": f"task:{suite}:{item}",
                    "origin": "task",
                    "source": suite,
                    "workload": workload,
                    "messages": json.dumps(messages, ensure_ascii=False),
                    "interaction_ids": [],
                    "tools": json.dumps(tools, ensure_ascii=False) if tools else None,
                    "verifier": json.dumps({**keys, **task}, ensure_ascii=False),
                    "state": None if record is None else json.dumps(record, ensure_ascii=False, sort_keys=True),
                    "right_answer": json.dumps(right, ensure_ascii=False, sort_keys=True),
                }
            )
    return pa.Table.from_pylist(prompts, schema=_TASKS)
