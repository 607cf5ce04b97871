"""The lines of vLLM's log that are neither requests nor responses (resources/records/objects/vllm_log.py): counted by kind.

A request or response that breaks off goes to quarantine.
"""

from __future__ import annotations

from resources.records.formats.format import Format

FORMAT = Format("vllm_lines", lambda record: record.get("vllm") in ("chatter", "delta", "params", "broken"))
