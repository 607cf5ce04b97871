"""Log formats, one small file each: how to recognise a record, and which SQL turns records into rows.

    FORMATS["litellm"].recognises(record)      # one parsed record
    detect(sample)                             # the format of most of a file's first records

A new format is one file here, one line in FORMATS, and sql/reading/formats/<name>.sql with the sections `interactions` and
`feedback`, each one select from `records` (object, row, raw). The columns are those of `no_interactions` and `no_feedback` in
sql/reading/batch.sql; columns that a select does not name are null. The select runs once over each part of the text, on
several threads. Every record must give at least one row; `error_code` and `message` say what it lacks. (Put an expression that
parses `raw` again into one `case` and name it once: DuckDB evaluates it for every row where it occurs twice.)
"""

from __future__ import annotations

from dataclasses import replace

from resources.records.formats import (
    alpaca,
    anthropic,
    anthropic_batch,
    bedrock,
    capture_note,
    chunks,
    completions,
    edits,
    feedback,
    gemini,
    gemini_batch,
    langfuse,
    langfuse_scores,
    langsmith,
    litellm,
    log_lines,
    messages,
    oasst,
    ollama,
    openai_batch,
    openai_pairs,
    otlp,
    preferences,
    prompt_completion,
    sglang,
    sharegpt,
    stored_completions,
    text,
    tokens,
    trajectories,
    vllm,
    vllm_lines,
)
from resources.records.formats.format import Format

FORMATS: dict[str, Format] = {
    module.FORMAT.name: module.FORMAT
    for module in (
        capture_note,
        litellm,
        otlp,
        openai_batch,
        anthropic_batch,
        gemini_batch,
        langfuse,
        langfuse_scores,
        langsmith,
        sglang,
        vllm,
        vllm_lines,
        log_lines,
        bedrock,
        anthropic,
        gemini,
        ollama,
        completions,
        openai_pairs,
        chunks,
        stored_completions,
        trajectories,
        oasst,
        edits,
        preferences,
        tokens,
        sharegpt,
        alpaca,
        prompt_completion,
        messages,
        feedback,
        text,
    )
}
"""In the order in which they are tried: unmistakable keys first."""

MAPPED: dict[str, Format] = {
    f"fields:{name}": replace(
        form, name=f"fields:{name}", recognises=lambda record: False, fills=("interactions",), rows_as=form.rows_as or name
    )
    for name, form in FORMATS.items()
    if name == "messages" or (form.fills == ("interactions",) and not (form.turns or form.streamed or form.plain_text))
}
"""Formats of records that a source's `fields` puts into the keys of another format, by name."""

BY_NAME: dict[str, Format] = FORMATS | MAPPED


def detect(sample: list[dict]) -> Format | None:
    """The format of a file, from its first records; None where no format recognises any of them."""
    votes = {name: sum(form.recognises(record) for record in sample) for name, form in FORMATS.items()}
    best = max(votes, key=lambda name: votes[name])
    return FORMATS[best] if votes[best] else None
