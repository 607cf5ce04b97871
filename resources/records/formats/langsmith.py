"""LangSmith's runs, as `Client.list_runs` and bulk exports give them: {id, run_type, inputs, outputs, start_time, ...}.

Only a run of type `llm` is an interaction: chains, tools and others are counted and skipped. Messages may be LangChain's
objects (constructor, {type, content}, {type, data}) or OpenAI's. The thread in the metadata is the session.
"""

from __future__ import annotations

from resources.records.formats.format import Format


def recognises(record: dict) -> bool:
    return isinstance(record.get("run_type"), str) and "inputs" in record and ("start_time" in record or "trace_id" in record)


FORMAT = Format("langsmith", recognises)
