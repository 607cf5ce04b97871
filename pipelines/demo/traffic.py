"""The demo's traffic: logs as a gateway would write them, with known numbers of typical faults.

A code assistant's questions and answers are the standard library's own functions; a mail desk's are in mail.py. The directory
gets gateway/ (gzipped request/response pairs by hour), litellm/ (one day, one object per record), feedback/, seeds.jsonl,
evals/ and planted.json (the report). The same arguments on the same Python give the same bytes."""

import json
import random
import shutil
from collections import Counter, defaultdict
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import BaseModel, ConfigDict

from model_ops.files import write_json, write_text
from pipelines.demo.mail import mails
from pipelines.demo.records import (
    KINDS,
    DemoExchange,
    DemoTurn,
    Function,
    feedback_record,
    gateway_pair,
    litellm_payload,
    make_turn,
    readable_functions,
    write_gateway_hour,
)

RETRIED, REPEATED, NEAR_COPY, FAILED, TRUNCATED, MALFORMED, LATE = 0.03, 0.01, 0.04, 0.02, 0.02, 0.005, 0.003
EMAIL, CARD = 0.01, 0.006
"""Each kind of fault, as a share of the requested interactions; at least two of each."""

CLIENTS: dict[str, tuple[str, str]] = {
    "ide-plugin": ("code-completion", "Reply with Python code only."),
    "chat-web": ("code-chat", "You help people who program in Python."),
    "mail-desk": ("mail-desk", "You sort the mail of a shop."),
}
"""Client -> its workload_id and its system prompt. Explanations are asked for in the chat only."""
CHAT_WITHOUT_EXPLANATION = 0.15
"""Share of the conversations without an explanation that are in the chat too."""
TURNS_OF_A_SESSION = ((1, 2, 3, 4), (0.35, 0.30, 0.20, 0.15))
HELD_OUT_MAILS = 120
HOUR_WEIGHTS = [1, 1, 1, 1, 1, 2, 3, 6, 10, 12, 12, 11, 9, 11, 12, 12, 11, 9, 6, 4, 3, 2, 1]
"""Sessions begin at these hours; none begins after 23:00, so that none crosses midnight."""


class TrafficError(ValueError):
    """The requested traffic cannot be made."""


class TrafficReport(BaseModel):
    """What was written. An interaction is one request with its response; a record is a line or an object."""

    model_config = ConfigDict(extra="forbid")

    interactions: int
    """Distinct requests with a response, including failed and truncated ones: what a perfect reader keeps."""
    records: int
    """Lines and objects of logs: interactions + repeated_lines + malformed_lines."""
    sessions: int
    functions: int
    retried_duplicates: int
    repeated_lines: int
    near_copies: int
    failed: int
    truncated: int
    malformed: dict[str, int]
    late: int
    """Lines in an object of the day after their own."""
    email_interactions: int
    card_interactions: int
    contaminated_interactions: int
    """Interactions that show the answer of a held-out function, or a held-out mail, themselves or in their history."""
    leaked_evals: list[str]
    feedback: dict[str, int]
    seeds: int
    evals: int
    by_day: dict[str, int]
    by_workload: dict[str, int]
    by_layout: dict[str, int]
    litellm_day: str
    emails: list[str]
    cards: list[str]

    @property
    def malformed_lines(self) -> int:
        return sum(self.malformed.values())


class _Material(NamedTuple):
    """Conversations, and examples apart from them. leaked: evals that occur in the conversations too."""

    sessions: list[list[DemoTurn]]
    seeds: list[DemoTurn]
    evals: list[DemoTurn]
    leaked: list[DemoTurn]


def write_traffic(
    directory: Path,
    interactions: int = 6000,
    days: int = 7,
    seed: int = 0,
    first_day: date = date(2026, 6, 1),
    product: Literal["code", "mail"] = "code",
) -> TrafficReport:
    """Writes the logs, feedback, seeds and evals of a product; what an earlier call wrote there is replaced. interactions:
    number of turns; duplicates, near-copies and failures are added. Raises TrafficError for fewer than 100 interactions or 2
    days, or for more than the library has questions."""
    if interactions < 100 or days < 2:
        raise TrafficError(f"{interactions} interactions over {days} days: at least 100 over 2 days are needed")
    rng = random.Random(f"millrace traffic {seed}")
    sessions, seeds, evals, leaked = (_mail_material if product == "mail" else _code_material)(interactions, rng)
    plan = _Plan(rng, first_day, days, interactions)
    log = [exchange for turns in sessions for exchange in plan.session(turns)]
    log += plan.mess(log, interactions)
    log.sort(key=lambda exchange: (exchange.ts, exchange.response_id))
    malformed, late = _write_logs(directory, log, plan, rng, interactions)
    feedback = _write_feedback(directory, log, rng)
    _write_examples(directory, seeds, evals)

    report = TrafficReport(
        interactions=len(log),
        records=len(log) + plan.repeats + sum(malformed.values()),
        sessions=plan.sessions,
        functions=len({turn.function for turns in sessions for turn in turns if turn.function}),
        retried_duplicates=plan.retried,
        repeated_lines=plan.repeats,
        near_copies=plan.near_copies,
        failed=sum(exchange.failed for exchange in log),
        truncated=sum(exchange.finish_reason == "length" and not exchange.failed for exchange in log),
        malformed=malformed,
        late=late,
        email_interactions=_holding(log, plan.emails),
        card_interactions=_holding(log, plan.cards),
        contaminated_interactions=_holding(log, [turn.question if turn.kind == "mail" else turn.answer for turn in leaked]),
        leaked_evals=[_eval_id(index) for index in range(len(leaked))],
        feedback=feedback,
        seeds=len(seeds),
        evals=len(evals),
        by_day=dict(sorted(Counter(exchange.ts.date().isoformat() for exchange in log).items())),
        by_workload=dict(sorted(Counter(exchange.workload for exchange in log).items())),
        by_layout=dict(Counter("litellm" if e.ts.date() == plan.litellm_day else "gateway" for e in log)),
        litellm_day=plan.litellm_day.isoformat(),
        emails=plan.emails,
        cards=plan.cards,
    )
    write_json(directory / "planted.json", report.model_dump())
    return report


def _counts(interactions: int) -> tuple[int, int]:
    """How many seeds and evals."""
    return max(20, min(200, interactions // 30)), max(12, min(60, interactions // 60))


def _mail_material(interactions: int, rng: random.Random) -> _Material:
    """Each mail is a conversation of its own."""
    evals = mails(HELD_OUT_MAILS, rng, held_out=True)
    leaked = evals[: max(3, interactions // 300)]
    seed_count, _ = _counts(interactions)
    turns = mails(interactions + seed_count, rng)
    sessions = [[turn] for turn in [*turns[seed_count + len(leaked) :], *leaked]]
    rng.shuffle(sessions)
    return _Material(sessions, turns[:seed_count], evals, leaked)


def _code_material(interactions: int, rng: random.Random) -> _Material:
    functions = list(readable_functions())
    rng.shuffle(functions)
    seed_count, eval_count = _counts(interactions)
    seeds = _turns_of(functions[:seed_count], rng)
    functions = functions[seed_count:]
    evals = [turn for function in functions if (turn := make_turn(function, "write"))][:eval_count]
    reserved = {turn.function for turn in evals}
    functions = [function for function in functions if function not in reserved]
    leaked = evals[: max(3, eval_count // 5)]
    return _Material(_sessions(functions, leaked, interactions, rng), seeds, evals, leaked)


def _turns_of(functions: list[Function], rng: random.Random) -> list[DemoTurn]:
    """One turn for each function, of mixed kinds."""
    turns = []
    for function in functions:
        possible = [turn for kind in KINDS if (turn := make_turn(function, kind, rng.randrange(3)))]
        turns.append(rng.choice(possible))
    return turns


def _sessions(functions: list[Function], leaked: list[DemoTurn], count: int, rng: random.Random) -> list[list[DemoTurn]]:
    """Conversations of 1 to 4 turns about functions of one module, `count` turns in all. Every function is used once before any
    is used again, then with another kind of question, then with other words."""
    rounds: list[tuple[int, int, DemoTurn]] = []
    for wording in range(3):
        for function in functions:
            possible = [turn for kind in KINDS if (turn := make_turn(function, kind, wording))]
            rng.shuffle(possible)
            rounds.extend((wording, use, turn) for use, turn in enumerate(possible))
    if len(rounds) + len(leaked) < count:
        raise TrafficError(f"{count} interactions are more than the {len(rounds)} questions the library gives")
    rounds.sort(key=lambda entry: entry[:2])
    by_module: dict[str, list[DemoTurn]] = defaultdict(list)
    for turn in [*(turn for _, _, turn in rounds[: count - len(leaked)]), *leaked]:
        by_module[turn.function.module if turn.function else ""].append(turn)
    sessions = []
    for module in sorted(by_module):
        turns = by_module[module]
        rng.shuffle(turns)
        while turns:
            size = rng.choices(*TURNS_OF_A_SESSION)[0]
            session: list[DemoTurn] = []
            for turn in turns[: size + 2]:  # a function is never asked about twice in one conversation
                if len(session) < size and turn.function not in [earlier.function for earlier in session]:
                    session.append(turn)
            taken = set(map(id, session))
            turns[:] = [turn for turn in turns if id(turn) not in taken]
            sessions.append(session)
    rng.shuffle(sessions)
    return sessions


class _Plan:
    """Plans the conversations and the planted faults, and counts them."""

    def __init__(self, rng: random.Random, first_day: date, days: int, asked: int):
        self.rng = rng
        emails, cards = max(2, round(asked * EMAIL)), max(2, round(asked * CARD))
        personal = rng.sample(range(asked), emails + cards)
        self.email_turns, self.card_turns = set(personal[:emails]), set(personal[emails:])
        self.turn = 0
        self.days = [first_day + timedelta(days=index) for index in range(days)]
        self.litellm_day = self.days[min(3, days - 1)]
        self.users = [f"user-{index:04d}" for index in range(400)]
        self.sessions = self.retried = self.near_copies = self.repeats = 0
        self.emails: list[str] = []
        self.cards: list[str] = []

    def identity(self, prefix: str) -> str:
        return f"{prefix}{self.rng.getrandbits(96):024x}"

    def start(self) -> datetime:
        day, hour = self.rng.choice(self.days), self.rng.choices(range(23), HOUR_WEIGHTS)[0]
        return datetime(day.year, day.month, day.day, hour, self.rng.randrange(60), self.rng.randrange(60), tzinfo=UTC)

    def session(self, turns: list[DemoTurn]) -> list[DemoExchange]:
        """A conversation: each request carries everything said before it."""
        kinds = [turn.kind for turn in turns]
        chat = "explain" in kinds or self.rng.random() < CHAT_WITHOUT_EXPLANATION
        client = "mail-desk" if "mail" in kinds else "chat-web" if chat else "ide-plugin"
        workload, system = CLIENTS[client]
        self.sessions += 1
        session_id, user, now = self.identity("s-"), self.rng.choice(self.users), self.start()
        messages, exchanges = [{"role": "system", "content": system}], []
        for turn in turns:
            question = self._with_personal_data(turn.question)
            messages = [*messages, {"role": "user", "content": question}]
            exchanges.append(
                DemoExchange(
                    ts=now,
                    client=client,
                    workload=workload,
                    session_id=session_id,
                    user=user,
                    messages=messages,
                    answer=turn.answer,
                    response_id=self.identity("chatcmpl-"),
                    temperature=0.7 if chat else 0.2,
                    latency_ms=round(200 + 9.0 * len(turn.answer) / 4 + self.rng.expovariate(1 / 150), 1),
                    ttft_ms=round(60 + self.rng.expovariate(1 / 40), 1),
                )
            )
            messages = [*messages, {"role": "assistant", "content": turn.answer}]
            now += timedelta(seconds=self.rng.randint(20, 240))
        return exchanges

    def _with_personal_data(self, question: str) -> str:
        turn, self.turn = self.turn, self.turn + 1
        if turn in self.email_turns:
            name, host = self.rng.choice(["ada", "lin", "omar", "eva"]), self.rng.choice(["corp.example", "mail.test"])
            self.emails.append(f"{name}.{self.rng.randrange(10**5):05d}@{host}")
            return f"{question}\n\nMail it to {self.emails[-1]} as well."
        if turn in self.card_turns:
            self.cards.append(card_number(self.rng))
            return f"{question}\n\nThe test data holds card {self.cards[-1]}."
        return question

    def mess(self, log: list[DemoExchange], asked: int) -> list[DemoExchange]:
        """Adds faults to the conversations; truncation changes last turns in place."""

        def amount(share: float) -> int:
            return max(2, round(asked * share))

        last_turns = [
            e for e, after in zip(log, [*log[1:], None], strict=True) if after is None or after.session_id != e.session_id
        ]
        extra: list[DemoExchange] = []
        for exchange in self.rng.sample(last_turns, amount(TRUNCATED)):
            exchange.answer = exchange.answer[: len(exchange.answer) * 2 // 3]
            exchange.finish_reason = "length"
        whole = [exchange for exchange in log if exchange.finish_reason == "stop"]
        for exchange in self.rng.sample(log, amount(FAILED)):  # the client repeated the request and got an answer
            extra.append(exchange.again(self.identity("chatcmpl-"), seconds=-self.rng.randint(2, 15), failed=True))
        for exchange in self.rng.sample(whole, amount(RETRIED)):
            extra.append(exchange.again(self.identity("chatcmpl-"), seconds=self.rng.randint(1, 15)))
            self.retried += 1
        first_turns = [exchange for exchange in whole if len(exchange.messages) == 2]
        for exchange in self.rng.sample(first_turns, min(len(first_turns), amount(NEAR_COPY))):
            copy = exchange.again(self.identity("chatcmpl-"), seconds=self.rng.randint(300, 2400))
            copy.session_id = self.identity("s-")
            copy.messages = [copy.messages[0], {"role": "user", "content": self._reworded(copy.messages[1]["content"])}]
            extra.append(copy)
            self.sessions += 1
            self.near_copies += 1
        return extra

    def _reworded(self, question: str) -> str:
        before = self.rng.choice(["Please: ", "Quick one. ", "Again: ", "Hi! "])
        after = self.rng.choice(["", " Thanks.", "\n\nSame style as before.", "\n\nKeep it short."])
        return before + question[0].lower() + question[1:] + after


def card_number(rng: random.Random) -> str:
    """A 16-digit number that passes the Luhn check, in an unassigned range (4000 00)."""
    digits = [4, 0, 0, 0, 0, 0] + [rng.randrange(10) for _ in range(9)]
    doubled = [digit * 2 - 9 * (digit > 4) if index % 2 == 0 else digit for index, digit in enumerate(digits)]
    text = "".join(map(str, [*digits, -sum(doubled) % 10]))
    return " ".join(text[start : start + 4] for start in range(0, 16, 4))


def _holding(log: list[DemoExchange], marks: list[str]) -> int:
    """Number of interactions that contain one of the texts."""
    return sum(any(mark in text for mark in marks for text in exchange.texts()) for exchange in log)


def _write_logs(
    directory: Path, log: list[DemoExchange], plan: _Plan, rng: random.Random, asked: int
) -> tuple[dict[str, int], int]:
    for name in ("gateway", "litellm", "feedback", "evals"):
        shutil.rmtree(directory / name, ignore_errors=True)
    hours: dict[tuple[date, int], list[bytes]] = defaultdict(list)
    objects: dict[str, bytes] = {}
    gateway = [exchange for exchange in log if exchange.ts.date() != plan.litellm_day]
    can_be_late = [exchange for exchange in gateway if exchange.ts.date() != plan.days[-1]]
    late = {id(exchange) for exchange in rng.sample(can_be_late, max(2, round(asked * LATE)))}
    repeated = {id(exchange) for exchange in rng.sample(gateway, max(2, round(asked * REPEATED)))}
    for exchange in log:
        if exchange.ts.date() == plan.litellm_day:
            objects[exchange.response_id] = litellm_payload(exchange)
            continue
        line = gateway_pair(exchange)
        place = (exchange.ts.date(), exchange.ts.hour)
        if id(exchange) in late:
            place = (place[0] + timedelta(days=1), 0)
        hours[place].append(line)
        if id(exchange) in repeated:
            hours[place].append(line)
            plan.repeats += 1
    malformed = _spoil(hours, objects, rng, max(5, round(asked * MALFORMED)))
    for (day, hour), lines in hours.items():
        write_gateway_hour(directory / "gateway" / f"dt={day.isoformat()}" / f"hour={hour:02d}", lines)
    folder = directory / "litellm" / plan.litellm_day.isoformat()
    folder.mkdir(parents=True)
    for identity, payload in objects.items():
        (folder / f"{identity}.json").write_bytes(payload)
    return malformed, len(late)


def _spoil(hours: dict, objects: dict[str, bytes], rng: random.Random, count: int) -> dict[str, int]:
    """Adds lines and objects that are not records."""
    kinds = ("cut_json", "binary", "wrong_type", "no_messages", "cut_object")
    malformed: Counter[str] = Counter()
    places = sorted(hours)
    for index in range(count):
        kind = kinds[index % len(kinds)]
        lines = hours[rng.choice(places)]
        whole = next(line for line in lines if line.startswith(b'{"timestamp": 1'))
        if kind == "cut_json":
            spoiled = whole[: len(whole) // 2]
        elif kind == "binary":
            spoiled = b"\xff\xfe" + rng.randbytes(40).replace(b"\n", b"\x00").replace(b"\r", b"\x00")
        elif kind == "wrong_type":
            spoiled = b'{"timestamp": 1780300000, "client_id": "probe", "request": "GET /health", "response": 200}'
        elif kind == "no_messages":
            spoiled = b'{"timestamp": 1780300000, "request": {"model": "coder-large"}, "response": {"choices": []}}'
        else:
            name = rng.choice(sorted(objects))
            objects[f"cut-{index:04d}"] = objects[name][: len(objects[name]) // 3]
            malformed[kind] += 1
            continue
        lines.insert(rng.randrange(len(lines) + 1), spoiled)
        malformed[kind] += 1
    return dict(malformed)


def _write_feedback(directory: Path, log: list[DemoExchange], rng: random.Random) -> dict[str, int]:
    """Thumbs for about one answer in ten; one thumb in eight is about a whole session. Cut answers are disliked."""
    by_day: dict[str, list[str]] = defaultdict(list)
    counts: Counter[str] = Counter({"up": 0, "down": 0, "on_responses": 0, "on_sessions": 0})
    for exchange in log:
        cut = exchange.finish_reason == "length"
        if exchange.failed or rng.random() >= (0.5 if cut else 0.1):
            continue
        up, on_session = rng.random() < (0.1 if cut else 0.8), rng.random() < 0.125
        when = exchange.ts + timedelta(seconds=rng.randint(5, 900))
        by_day[when.date().isoformat()].append(feedback_record(exchange, up, on_session, when))
        counts["up" if up else "down"] += 1
        counts["on_sessions" if on_session else "on_responses"] += 1
    for day, lines in sorted(by_day.items()):
        write_text(directory / "feedback" / f"{day}.jsonl", "\n".join(lines) + "\n")
    return dict(counts)


def _eval_id(index: int) -> str:
    return f"heldout-{index:03d}"


def _write_examples(directory: Path, seeds: list[DemoTurn], evals: list[DemoTurn]) -> None:
    seed_lines = [
        {"id": f"seed-{index:04d}", "messages": [*_asked(turn), {"role": "assistant", "content": turn.answer}]}
        for index, turn in enumerate(seeds)
    ]
    eval_lines = [  # a mail is answered right by any JSON of the same value
        {"id": _eval_id(index), "messages": _asked(turn), "json_schema": {"const": json.loads(turn.answer)}}
        if turn.kind == "mail"
        else {"id": _eval_id(index), "prompt": turn.question, "answer": turn.answer}
        for index, turn in enumerate(evals)
    ]
    name = "heldout_mail" if evals[0].kind == "mail" else "heldout_functions"
    for path, lines in ((directory / "seeds.jsonl", seed_lines), (directory / "evals" / f"{name}.jsonl", eval_lines)):
        write_text(path, "".join(json.dumps(line) + "\n" for line in lines))


def _asked(turn: DemoTurn) -> list[dict[str, str]]:
    client = {"mail": "mail-desk", "explain": "chat-web"}.get(turn.kind, "ide-plugin")
    return [{"role": "system", "content": CLIENTS[client][1]}, {"role": "user", "content": turn.question}]
