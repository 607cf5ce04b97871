"""Builds the preference dataset: pairs of a chosen and a rejected answer to one prompt.

    counts = build_preferences(tables, "math-tutor", output, PreferenceSettings(), DatasetSettings(), curated_version="3fa9...")

Writes train.parquet, validation.parquet and test.parquet, each with

    row_id, origin ('interaction' or 'teacher'), source, session_id, workload, ts, language
    prompt                   JSON text: the messages before the answer
    tools, request           JSON text, or null: what the request gave the chat template besides messages
    chosen, rejected         JSON text: a list of one message, as preference trainers take it
    chosen_id, rejected_id   their interactions; null for an edited answer and a teacher's
    chosen_feedback, rejected_feedback
    interaction_ids          both
    confidence               how sure the source is that `chosen` is better, above 0 and at most 1
    margin                   difference of the grades of both, scaled to 0 to 1; null without grades
    reason                   rated (feedback differs), regenerated (the conversation went on from the other answer), edited (it
                             went on from a text that no answer logged), teacher (a teacher's rejected answer)
    split, weight, content_sha256, synthetic

unpaired_train.parquet, unpaired_validation.parquet and unpaired_test.parquet have a row for each answer with a verdict of its own:
row_id, origin, source, session_id, workload, ts, language, prompt, tools, request, answer (JSON text: a list of one message),
desirable (boolean), value, interaction_ids, reason (thumb, outcome, dissatisfied), split, weight, confidence, content_sha256,
synthetic.

Splits are drawn as those of `datasets.sft`; a pair of two sessions is in the more protected split of both. DPO lines and ranked
trees are read as feedback on answers to one prompt (docs/data.md), so they become `rated` pairs.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from resources.composing.dataset_card import write_plain_card
from resources.composing.dataset_settings import ALL_ROWS, DatasetError, DatasetSettings, PreferenceSettings
from resources.curating import MACROS, attach_row_feedback
from resources.lake import Tables, attach_parquet, attach_slice, run, stream, workbench, write_rows

SPLITS = ("train", "validation", "test")
_LENT = pa.schema([("split", pa.string()), ("drawn", pa.string())])
_TEACHER = pa.schema(
    [
        ("row_id", pa.string()),
        ("interaction_ids", pa.list_(pa.string())),
        ("source", pa.string()),
        ("session_id", pa.string()),
        ("prompt", pa.string()),
        ("tools", pa.string()),
        ("chosen", pa.string()),
        ("rejected", pa.string()),
        ("chosen_score", pa.float64()),
        ("rejected_score", pa.float64()),
    ]
)


def build_preferences(
    tables: Tables,
    workload: str,
    output: Path,
    settings: PreferenceSettings,
    split_settings: DatasetSettings,
    curated_version: str,
    lent: Mapping[str, list[str]] | None = None,
    teacher: Path | None = None,
    about: Mapping[str, Any] | None = None,
    least: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """Fills `output` and returns counts. least: lowest good value by the feedback's name. curated_version: of
    curated_interactions, whose contaminated rows are left out. lent: of sft_dataset. teacher: preferences.parquet of
    teacher_answers.

    Raises DatasetError if no pair is found.
    """
    output.mkdir(parents=True, exist_ok=True)
    with workbench() as connection:
        for name in ("interactions", "cleaned_interactions", "feedback", "decisions"):
            attach_slice(connection, tables, name, workload)
        if teacher is None:
            connection.register("teacher_pairs", _TEACHER.empty_table())
        else:
            attach_parquet(connection, "teacher_pairs", teacher)
        held = [{"split": split, "drawn": drawn} for split, names in (lent or {}).items() for drawn in names]
        connection.register("lent_before", pa.Table.from_pylist(held, schema=_LENT))
        for macro in MACROS:
            run(connection, macro)
        run(connection, "curating/clean/cleaned_with_ids")
        attach_row_feedback(connection, least or {})
        run(connection, "curating/curate/prompts")
        run(connection, "composing/preferences/answered", curated=curated_version)
        run(connection, "composing/preferences/repeated_answers")
        run(connection, "composing/preferences/pairs", min_difference=settings.min_difference)
        run(connection, "composing/preferences/sessions")
        run(
            connection,
            "composing/splits/split_groups",
            lend=False,
            seed=str(split_settings.seed),
            split_by=split_settings.split_by,
            test_share=split_settings.test_share,
            validation_share=split_settings.validation_share,
        )
        run(connection, "composing/preferences/rows")
        run(connection, "composing/preferences/teacher_rows")
        for split in SPLITS:
            write_rows(stream(connection, "composing/preferences/unpaired_rows"), output / f"unpaired_{split}.parquet")
        counts = {
            split: write_rows(
                stream(
                    connection,
                    "composing/preferences/split_rows",
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
            "no pair of a better and a worse answer for training: nobody rated, regenerated or edited an answer to a prompt "
            "that has another one; add feedback, DPO lines or a teacher with several answers, or leave datasets.preference out"
        )
    return {
        "rows": counts,
        **write_plain_card(
            output, "Pairs of a chosen and a rejected answer to one prompt, for preference training.", about or {}
        ),
    }
