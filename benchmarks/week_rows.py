"""The conversations of a simulated week: what was logged before it, and what is asked on each of its days.

    week = WeekRows(shared, "house-chat", shift_day=3, broken_day=5, days=7)
    week.write_history(folder, days=[...], rows_a_day=32)      # math, with the house model's own answers, as log files
    week.asked(day=3, count=96)                                # Asked(body, session, kind), in order

Before the shift people ask GSM8K's questions (`math`), after it an airline's customers talk to an agent with tools (`airline`,
tau-bench). Logged answers are those of ../shared/data/house_onpolicy.jsonl with their token ids; the week asks GSM8K's test
questions and other moments of the airline's conversations, cut before an answer of the agent. On the day that breaks,
three quarters are: requests that the server must refuse, texts without meaning, and one question again and again.
"""

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

from benchmarks.house import LONGEST_MESSAGE, House
from model_ops.files.atomic_files import write_text
from model_ops.files.digests import target_digest
from model_ops.models.model_directory import load_tokenizer

Kind = Literal["asked", "refused", "junk", "repeated"]
MAX_TOKENS = 128
AIRLINE_TURNS = 2
LONGEST_CHAT = 4_000
"""Characters of a conversation that is asked."""
BROKEN = ("asked", "refused", "junk", "repeated")
"""What is asked by turns on the day that breaks."""


@dataclass(frozen=True)
class Asked:
    """kind: `refused` is wrong, and must be answered with 4xx; all others must be answered."""

    body: dict[str, Any]
    session: str
    kind: Kind


class WeekRows:
    """shift_day, broken_day: of the week, counted from 1. Raises SystemExit where ../shared is not there."""

    def __init__(self, shared: Path, workload: str, shift_day: int, broken_day: int, days: int):
        self._house = House(shared, shared)
        self._shared, self.workload = shared, workload
        self.shift_day, self.broken_day, self.days = shift_day, broken_day, days
        self._math, self._airline = self._math_chats(), self._airline_chats()

    def write_history(self, folder: Path, days: Sequence[date], rows_a_day: int) -> int:
        """Log files of these days under dt=; returns how many rows there are."""
        tokenizer, digest = load_tokenizer(self._house.target), target_digest(self._house.target)
        lines = (self._shared / "data" / "house_onpolicy.jsonl").read_text().splitlines()
        math = [row for row in map(json.loads, lines) if row["workload"] == "math"]
        random.Random(2).shuffle(math)
        written = 0
        for place, day in enumerate(days):
            records = [
                self._record(row, f"before-{place}-{number}", day, number, tokenizer, digest)
                for number, row in enumerate(math[place * rows_a_day : (place + 1) * rows_a_day])
            ]
            write_text(folder / f"dt={day}" / "before.jsonl", "".join(f"{json.dumps(record)}\n" for record in records))
            written += len(records)
        return written

    def asked(self, day: int, count: int) -> list[Asked]:
        """The requests of a day of the week, sessions together."""
        usual = self._usual(day, count if day != self.broken_day else count // len(BROKEN) + 1)
        if day != self.broken_day:
            return usual
        draw, found = random.Random(day), []
        for number in range(count):
            kind = BROKEN[number % len(BROKEN)]
            found.append(usual[number // len(BROKEN)] if kind == "asked" else self._broken(kind, number, usual[0], draw))
        return found

    def _usual(self, day: int, count: int) -> list[Asked]:
        if day < self.shift_day:
            chats = self._math[(day - 1) * count : day * count]
            return [Asked(self._body(messages), f"day-{day}-{number}", "asked") for number, messages in enumerate(chats)]
        found: list[Asked] = []
        for number, turns in enumerate(self._airline[day - self.shift_day :: self.days - self.shift_day + 1]):
            found += [Asked(self._body(messages), f"day-{day}-{number}", "asked") for messages in turns]
        return found[:count]

    def _broken(self, kind: Kind, number: int, repeated: Asked, draw: random.Random) -> Asked:
        if kind == "repeated":
            return Asked(repeated.body, f"again-{number % 7}", kind)
        if kind == "junk":
            letters = "".join(chr(draw.choice((*range(33, 127), *range(0x400, 0x450), 32, 32, 32))) for _ in range(400))
            return Asked(self._body([{"role": "user", "content": letters}]), f"junk-{number}", kind)
        wrong = draw.choice(({"max_tokens": -1}, {"temperature": "hot"}, {"messages": "hello"}, {"model": "another-model"}))
        return Asked({**self._body([{"role": "user", "content": "hello"}]), **wrong}, f"wrong-{number}", kind)

    def _body(self, messages: list[dict[str, Any]]) -> dict[str, Any]:
        return {"model": self.workload, "messages": messages, "temperature": 1, "max_tokens": MAX_TOKENS}

    def _record(self, row: dict[str, Any], name: str, day: date, number: int, tokenizer: Any, digest: str) -> dict[str, Any]:
        prompt = tokenizer.decode(row["prompt"], skip_special_tokens=False)
        question = prompt.split("<|im_start|>user\n")[1].split("<|im_end|>")[0]
        answer, ended = tokenizer.decode(row["answer"], skip_special_tokens=True), row["answer"][-1:] == [2]
        at = datetime(day.year, day.month, day.day, 9, tzinfo=UTC) + timedelta(minutes=15 * number)
        return {
            "timestamp": at.isoformat(),
            "request_id": name,
            "session_id": name,
            "served_model_digest": digest,
            "latency_ms": 400.0,
            "request": {**self._body([{"role": "user", "content": question}]), "max_tokens": 96},
            "response": {
                "id": name,
                "model": self.workload,
                "prompt_token_ids": row["prompt"],
                "choices": [
                    {
                        "index": 0,
                        "message": {"role": "assistant", "content": answer},
                        "finish_reason": "stop" if ended else "length",
                        "token_ids": row["answer"],
                    }
                ],
                "usage": {"prompt_tokens": len(row["prompt"]), "completion_tokens": len(row["answer"])},
            },
        }

    def _math_chats(self) -> list[list[dict[str, Any]]]:
        lines = (self._shared / "data" / "gsm8k_test.jsonl").read_text().splitlines()
        chats = [[{"role": "user", "content": json.loads(line)["question"]}] for line in lines]
        random.Random(3).shuffle(chats)
        return chats

    def _airline_chats(self) -> list[list[list[dict[str, Any]]]]:
        """Of each conversation the moments before the agent's first answers in words; conversations of one task lie apart."""
        found = []
        for chat in json.loads((self._shared / "data" / "tau_airline.json").read_text()):
            messages = [_short(message) for message in chat["traj"]]
            answers = [at for at, message in enumerate(messages) if message["role"] == "assistant" and message.get("content")]
            turns = [messages[:at] for at in answers[:AIRLINE_TURNS] if len(json.dumps(messages[:at])) < LONGEST_CHAT]
            if turns:
                found.append(turns)
        random.Random(4).shuffle(found)
        return found


def _short(message: dict[str, Any]) -> dict[str, Any]:
    """As the house model was trained to read it: the system's and tools' texts are cut."""
    kept = {name: message[name] for name in ("role", "content", "tool_calls", "tool_call_id", "name") if message.get(name)}
    kept.setdefault("content", "")
    return kept if message["role"] in ("user", "assistant") else {**kept, "content": kept["content"][:LONGEST_MESSAGE]}
