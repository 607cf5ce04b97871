"""Synthetic gateway logs for benchmarks: OpenAI request/response pairs, gzip JSON lines, several files a day.

    write_pairs(Path("logs"), rows=1_000_000)      # about 1.5 kB a row before compression, in dt=... folders

The same arguments give the same bytes. Words are drawn from a skewed vocabulary of several languages; some rows carry
tools and tool calls, several turns, several choices, errors, reasoning or served token ids; no two rows are alike.
"""

import gzip
import json
import random
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from typing import Any

FIRST_DAY = date(2026, 6, 1)
SYLLABLES = (  # noqa: SIM905
    "al an ar as at be ca co con de di do el en er es ex fi for ge ha he id im in is it ka ko la le li lo ma me mi mo na ne "
    "ni no of on op or pa pe po pre pro qu ra re ri ro sa se si so sta su ta te ter ti to tra tu un ur us va ve vi wa we wi "
    "zu ä é ö ü ß ñ ç на ст ли 你 好 数据 の は です 😀"
).split(" ")
MODELS = ("gpt-4.1-mini", "qwen3-8b-instruct", "llama-3.3-70b", "mistral-small-3.2")
CITY_TOOL = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Looks a thing up by its key",
        "parameters": {
            "type": "object",
            "properties": {"key": {"type": "string"}, "limit": {"type": "integer"}},
            "required": ["key"],
        },
    },
}


def write_pairs(
    folder: Path,
    rows: int,
    days: int = 10,
    files_per_day: int = 4,
    seed: int = 1,
    first_day: date = FIRST_DAY,
    processes: int = 2,
) -> int:
    """Writes the files and returns how many interactions (choices) the rows hold."""
    parts = days * files_per_day
    sizes = [rows // parts + (part < rows % parts) for part in range(parts)]
    jobs = []
    for part, size in enumerate(sizes):
        day = first_day + timedelta(days=part // files_per_day)
        path = folder / f"dt={day}" / f"gateway-{part % files_per_day:03}.jsonl.gz"
        path.parent.mkdir(parents=True, exist_ok=True)
        jobs.append((path, day, size, seed * 1_000_003 + part))
    with ProcessPoolExecutor(processes) as pool:
        return sum(pool.map(_write_file, jobs))


def _write_file(job: tuple[Path, date, int, int]) -> int:
    path, day, rows, seed = job
    chance = random.Random(seed)
    words = _vocabulary()
    weights = [1 / (rank + 8) for rank in range(len(words))]
    midnight = datetime.combine(day, time(), UTC).timestamp()
    interactions = 0
    with path.open("wb") as file, gzip.GzipFile(filename="", fileobj=file, mode="wb", compresslevel=6, mtime=0) as zipped:
        drawn: list[str] = []
        for row in range(rows):
            if len(drawn) < 2_000:
                drawn = chance.choices(words, weights, k=200_000)
            record = _record(chance, drawn, f"{seed:x}-{row:x}", midnight + 86_399 * row / max(rows, 1))
            interactions += max(len(record["response"].get("choices", ())), 1)
            zipped.write(json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode() + b"\n")
    return interactions


def _vocabulary() -> list[str]:
    chance = random.Random(0)
    return ["".join(chance.choices(SYLLABLES, k=chance.choice((1, 2, 2, 3, 3, 4)))) for _ in range(20_000)]


def _text(drawn: list[str], words: int) -> str:
    taken = drawn[-words:]
    del drawn[-words:]
    return " ".join(taken)


def _record(chance: random.Random, drawn: list[str], identity: str, ts: float) -> dict[str, Any]:
    kind = chance.random()
    messages = [{"role": "system", "content": f"You help team {int(kind * 1e6) % 17}. Be brief and kind."}]
    for _ in range(chance.choice((0, 0, 0, 1, 2))):
        messages += [
            {"role": "user", "content": _text(drawn, chance.randint(5, 25))},
            {"role": "assistant", "content": _text(drawn, chance.randint(5, 24))},
        ]
    messages.append({"role": "user", "content": _text(drawn, chance.randint(10, 70)) + ' "quoted"\nnext line?'})
    request: dict[str, Any] = {
        "model": chance.choice(MODELS),
        "messages": messages,
        "temperature": round(chance.random(), 2),
        "max_tokens": chance.choice((256, 512, 1024)),
        "stream": False,
        "metadata": {"session_id": f"s-{identity[:-2]}", "workload_id": chance.choice(("assistant", "search"))},
    }
    answers = []
    for index in range(3 if kind < 0.02 else 1):
        message: dict[str, Any] = {"role": "assistant", "content": _text(drawn, chance.randint(20, 80)), "refusal": None}
        if 0.02 <= kind < 0.12:
            call = {
                "id": f"call_{identity}",
                "type": "function",
                "function": {
                    "name": "look_up",
                    "arguments": json.dumps({"key": _text(drawn, 3), "limit": 5}, ensure_ascii=False),
                },
            }
            message |= {"content": None, "tool_calls": [call]}
        if 0.12 <= kind < 0.17:
            message["reasoning_content"] = _text(drawn, 40)
        answers.append(
            {
                "index": index,
                "logprobs": None,
                "finish_reason": "tool_calls" if "tool_calls" in message else "stop",
                "message": message,
            }
        )
    if kind < 0.12:
        request |= {"tools": [CITY_TOOL], "tool_choice": "auto"}
    prompt_tokens, completion_tokens = chance.randint(50, 900), chance.randint(20, 400)
    response: dict[str, Any] = {
        "id": f"chatcmpl-{identity}",
        "object": "chat.completion",
        "created": int(ts),
        "model": request["model"],
        "choices": answers,
        "system_fingerprint": f"fp_{int(kind * 997):x}",
        "usage": {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": completion_tokens,
            "total_tokens": prompt_tokens + completion_tokens,
            "prompt_tokens_details": {"cached_tokens": prompt_tokens // 3},
            "completion_tokens_details": {"reasoning_tokens": 0},
        },
    }
    if 0.17 <= kind < 0.20:
        answers[0]["token_ids"] = chance.choices(range(32_000), k=60)
    if 0.20 <= kind < 0.21:
        response = {"id": f"chatcmpl-{identity}", "error": {"message": "upstream timed out", "type": "timeout", "code": 504}}
    return {
        "timestamp": round(ts, 3),
        "workload_id": request["metadata"]["workload_id"],
        "client_id": f"client-{chance.randint(1, 40)}",
        "user_id": f"user-{chance.randint(1, 5_000)}",
        "latency_ms": round(chance.expovariate(1 / 800), 1),
        "request": request,
        "response": response,
    }
