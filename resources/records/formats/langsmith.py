"""LangSmith's runs, as `Client.list_runs` and bulk exports give them: {id, run_type, inputs, outputs, start_time, ...}.

Only a run of type `llm` is an interaction: chains, tools and others are counted and skipped. Messages may be LangChain's
objects (constructor, {type, content}, {type, data}) or OpenAI's. The thread in the metadata is the session.
A run may be wrapped once more, {run: {...}}. Its `feedback_stats` are feedback: the mean of each key, with the first comment.
"""

from __future__ import annotations

from resources.records.formats.format import Format
from resources.records.providers.langsmith_runs import run_of


def recognises(record: dict) -> bool:
    record = run_of(record)
    return isinstance(record.get("run_type"), str) and "inputs" in record and ("start_time" in record or "trace_id" in record)


FORMAT = Format("langsmith", recognises, fills=("interactions", "feedback"))
