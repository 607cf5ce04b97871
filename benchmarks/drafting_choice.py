"""Whether the drafting that is chosen from measurements is the fastest on other prompts of the same traffic.

    python -m benchmarks.drafting_choice --drafter DIR     # about 25 minutes on 2 cores, 12 GB; DIR: a drafter of models/house
    python -m benchmarks.drafting_choice                   # one is trained first (10 minutes more)
    python -m benchmarks.drafting_choice --quick           # a small drafter, two concurrencies, few prompts

Target ../shared/models/house in vLLM, three workloads: GSM8K's test questions (math), airline conversations with tools
(airline), people's conversations with an assistant (oasst). Draftings: none, n-gram lookup and EAGLE-3 with K = 2 and 5, and,
if the first half of the prompts promises more from it, K by batch size. Every drafting has a server of its own, and all of them
run at once: they are asked by turns, in ROUNDS rounds, so that other work on the machine slows all of them alike. Each gets the
same requests, greedy, with a fixed number of tokens (ignore_eos), at 1, 2, 4 and 8 at a time. The conversations of a workload
are two halves: the drafting of each workload and concurrency is chosen on the first (model_ops.drafting.drafting_choice, as a
release chooses) and judged on the second.

rows: a workload at a concurrency: chosen; best: the fastest on the second half of those whose tail latency there is within the
bound of a release; ratio = tokens/s of the chosen one over those of the best; reason. chosen_is_best: how many rows have a
ratio of 0.97 or more. spread: by how much the tokens/s of a drafting differ from round to round, relative, median over all
cells (standard deviation over the mean): a ratio cannot be better known than 1.4 times that over the root of the rounds.
replayed: acceptance lengths of the lookups over the first half's greedy answers, without a server, beside what the server
counted. as_if: EAGLE-3 with the largest K, served as if its acceptance length were 3 (synthetic acceptance, text without
meaning): predicted = its tokens/s by tau / tau_needed of the trained drafter over those measured, geometric mean, lowest and
highest row.
"""

import argparse
import json
import math
import shutil
import tempfile
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

from benchmarks.drafter_served import MAX_MODEL_LEN, copied, serving_arguments, trained
from benchmarks.house import House
from benchmarks.record import record
from benchmarks.vllm_environment import vllm_python
from benchmarks.vllm_server import vllm_server
from model_ops.completions.served import ServedAcceptance, ServedMeasure, ServedModel, measure_served
from model_ops.decoding.prompts import render_prompt
from model_ops.drafting.acceptance import tau_of
from model_ops.drafting.drafting_choice import P99_ABOVE, MeasuredDrafting, Rate, break_even, choose_in_server, varying_drafting
from model_ops.drafting.drafts import NO_DRAFTING, Drafting, NgramIndex, with_drafter
from model_ops.drafting.measure_acceptance import replay
from model_ops.evaluation.served_forms import tail_s
from model_ops.models.model_directory import load_tokenizer
from model_ops.rendering.row import Row
from model_ops.serving.command import serving_of, speculative_config, varies_by_batch_size
from model_ops.speculators.registry import ARCHITECTURES

SERVING = ARCHITECTURES["eagle3"].serving
WORKLOADS = ("math", "airline", "oasst")
HALVES = ("chosen on", "judged on")
NEAR = 0.97
ROUNDS = 4
AS_IF_TAU = 3.0
LONGEST_PROMPT = 1_024
Cell = tuple[str, int, str]
"""Workload, concurrency, half."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    serving_arguments(parser)
    given = parser.parse_args()
    python = vllm_python(given.vllm)
    with tempfile.TemporaryDirectory(prefix="millrace-drafting-") as made:
        folder = Path(made)
        house = House(given.shared, folder)
        shutil.copytree(house.target, folder / "house")
        if given.drafter is None:
            trained(folder, folder / "house", house.answers(rows=400 if given.quick else None), 30 if given.quick else None)
        else:
            copied(given.drafter, folder / "drafter", folder / "house")
        prompts = {
            name: [
                (prompt.row_id.rpartition("-")[0] if name == "airline" else prompt.row_id, prompt.ids)
                for prompt in house.prompts[name]
            ]
            for name in ("math", "airline")
        }
        run = Run(folder, python, {**prompts, "oasst": oasst(given.shared)}, given.quick)
        record("drafting_choice", run.figures(), keep=not given.quick)


class Run:
    """Servers that are asked by turns, the same requests to each."""

    def __init__(self, folder: Path, python: Path, prompts: dict[str, list[tuple[str, list[int]]]], quick: bool):
        """prompts: of each workload, (conversation, token ids)."""
        self.folder, self.python, self.quick = folder, python, quick
        self.concurrencies = (1, 4) if quick else (1, 2, 4, 8)
        self.requests = 4 if quick else 16
        self.max_tokens = 16 if quick else 48
        self.rounds = 2 if quick else ROUNDS
        self.prompts = {
            (name, half): each[: self.requests] for name, found in prompts.items() for half, each in halves(found).items()
        }
        self.measured: dict[Drafting, dict[Cell, ServedMeasure]] = {}
        self.spreads: list[float] = []

    def figures(self) -> dict[str, Any]:
        lookups = [Drafting(method="ngram", num_speculative_tokens=k) for k in ((5,) if self.quick else (2, 5))]
        heads = [with_drafter(k) for k in ((2,) if self.quick else (2, 5))]
        self.measured = self._by_turns([NO_DRAFTING, *lookups, *heads])
        by_batch_size = varying_drafting(self._pooled(HALVES[0]), lambda each: varies_by_batch_size("vllm", each, SERVING))
        if by_batch_size is not None:
            self.measured[by_batch_size] = self._later(by_batch_size)
        as_if = self._by_turns([NO_DRAFTING, heads[-1]], as_if_tau=AS_IF_TAU)
        rows = [self._row(workload, concurrency) for workload in WORKLOADS for concurrency in self.concurrencies]
        return {
            "rows": rows,
            "chosen_is_best": sum(row["ratio"] >= NEAR for row in rows),
            "of": len(rows),
            "lowest_ratio": min(row["ratio"] for row in rows),
            "spread": round(median(self.spreads), 3),
            "rounds": self.rounds,
            "by_batch_size": by_batch_size and {**by_batch_size.model_dump(), "ratio_to_best": self._of_best(by_batch_size)},
            "as_if": self._as_if(heads[-1], as_if[heads[-1]], as_if[NO_DRAFTING]),
            "break_even": {workload: self._break_even(workload) for workload in WORKLOADS},
            "tau": {workload: self._taus(workload) for workload in WORKLOADS},
            "replayed": {workload: self._replayed(workload, lookups) for workload in WORKLOADS},
            "same_greedy_text": {drafting.label: self._same_text(drafting) for drafting in self.measured},
            "requests": self.requests,
            "max_tokens": self.max_tokens,
            "sample": self.measured[NO_DRAFTING][("math", 1, HALVES[0])].replies[0].text[:200],
        }

    def _later(self, drafting: Drafting) -> dict[Cell, ServedMeasure]:
        """A drafting that is measured after the others, as if beside them: by turns with the server without drafting, whose
        time then and now says how much slower the machine has become."""
        found = self._by_turns([NO_DRAFTING, drafting])
        return {
            cell: _scaled(each, found[NO_DRAFTING][cell].seconds / self.measured[NO_DRAFTING][cell].seconds)
            for cell, each in found[drafting].items()
        }

    def _by_turns(
        self, draftings: Sequence[Drafting], as_if_tau: float | None = None
    ) -> dict[Drafting, dict[Cell, ServedMeasure]]:
        """Every workload, concurrency and half, in one server for each drafting. as_if_tau: of those that draft."""
        started = time.monotonic()
        with ExitStack() as stack:
            servers = {drafting: stack.enter_context(self._server(drafting, as_if_tau)) for drafting in draftings}
            ready = time.monotonic()
            found: dict[Drafting, dict[Cell, ServedMeasure]] = {drafting: {} for drafting in draftings}
            for workload in WORKLOADS:
                for server in servers.values():
                    self._asked(server, self.prompts[workload, HALVES[0]][:8], 8, 8)  # its first requests are slower
                for concurrency in self.concurrencies:
                    for half in HALVES:
                        cell = workload, concurrency, half
                        for drafting, parts in self._rounds(cell, servers).items():
                            found[drafting][cell] = _joined(parts)
        print(
            json.dumps(
                {
                    "draftings": [each.label for each in draftings],
                    "as_if_tau": as_if_tau,
                    "started_s": round(ready - started),
                    "measured_s": round(time.monotonic() - ready),
                }
            ),
            flush=True,
        )
        return found

    def _rounds(self, cell: Cell, servers: dict[Drafting, ServedModel]) -> dict[Drafting, list[ServedMeasure]]:
        """Rounds of one workload, concurrency and half; each round begins with another server."""
        workload, concurrency, half = cell
        parts: dict[Drafting, list[ServedMeasure]] = {drafting: [] for drafting in servers}
        prompts, order = self.prompts[workload, half], list(servers)
        count = min(len(prompts), 4 * concurrency)  # about as long for every concurrency
        for number in range(self.rounds):
            asked = [prompts[(number * count + place) % len(prompts)] for place in range(count)]
            first = number % len(order)
            for drafting in [*order[first:], *order[:first]]:
                parts[drafting].append(self._asked(servers[drafting], asked, concurrency, self.max_tokens))
        for each in parts.values():
            speeds = [part.tokens_per_second for part in each]
            self.spreads.append(stdev(speeds) / mean(speeds))
        return parts

    def _server(self, drafting: Drafting, as_if_tau: float | None) -> AbstractContextManager[ServedModel]:
        used = serving_of(drafting, SERVING)
        words = (
            []
            if used is None
            else [
                "--speculative-config",
                json.dumps(
                    speculative_config(
                        used.vllm,
                        "drafter" if drafting.method == "drafter" else None,
                        drafting.num_speculative_tokens,
                        drafting.by_batch_size,
                        as_if_tau,
                    )
                ),
            ]
        )
        return vllm_server(self.python, "house", *words, "--max-model-len", str(MAX_MODEL_LEN), folder=self.folder)

    def _asked(self, server: ServedModel, prompts: Sequence[list[int]], concurrency: int, max_tokens: int) -> ServedMeasure:
        return measure_served(server, prompts, concurrency=concurrency, max_tokens=max_tokens, temperature=0, ignore_eos=True)

    def _of(self, workload: str, half: str) -> list[MeasuredDrafting]:
        """Every drafting on one half of a workload."""
        return [
            MeasuredDrafting(
                drafting,
                {
                    at: Rate(cells[workload, at, half].tokens_per_second, _tail(cells[workload, at, half]))
                    for at in self.concurrencies
                },
                _tau([cells[workload, at, half] for at in self.concurrencies]),
            )
            for drafting, cells in self.measured.items()
        ]

    def _pooled(self, half: str) -> list[MeasuredDrafting]:
        """Every drafting on all workloads together."""
        found = []
        for drafting, cells in self.measured.items():
            rates = {}
            for at in self.concurrencies:
                each = [cells[workload, at, half] for workload in WORKLOADS]
                rates[at] = Rate(sum(one.tokens for one in each) / sum(one.seconds for one in each), max(map(_tail, each)))
            found.append(MeasuredDrafting(drafting, rates))
        return found

    def _row(self, workload: str, concurrency: int) -> dict[str, Any]:
        choice = choose_in_server(self._of(workload, HALVES[0]), [concurrency])
        speeds = {
            drafting: [cells[workload, concurrency, half].tokens_per_second for half in HALVES]
            for drafting, cells in self.measured.items()
        }
        judged = {drafting: cells[workload, concurrency, HALVES[1]] for drafting, cells in self.measured.items()}
        longest = (1 + P99_ABOVE) * _tail(judged[NO_DRAFTING])
        best = max((each for each in speeds if _tail(judged[each]) <= longest), key=lambda each: speeds[each][1])
        return {
            "workload": workload,
            "concurrency": concurrency,
            "chosen": choice.drafting.label,
            "best": best.label,
            "ratio": round(speeds[choice.drafting][1] / speeds[best][1], 3),
            "over_none": round(speeds[choice.drafting][1] / speeds[NO_DRAFTING][1], 3),
            "reason": choice.reason,
            "tokens_per_second": {each.label: [round(speed, 1) for speed in found] for each, found in speeds.items()},
            "p99_s": {each.label: round(_tail(found), 3) for each, found in judged.items()},
        }

    def _of_best(self, drafting: Drafting) -> float:
        """A drafting's tokens/s over those of the best drafting, on the second half, geometric mean over all rows."""
        return round(
            _mean(
                [
                    self.measured[drafting][workload, at, HALVES[1]].tokens_per_second
                    / max(cells[workload, at, HALVES[1]].tokens_per_second for cells in self.measured.values())
                    for workload in WORKLOADS
                    for at in self.concurrencies
                ]
            ),
            3,
        )

    def _as_if(self, drafting: Drafting, as_if: dict[Cell, ServedMeasure], beside: dict[Cell, ServedMeasure]) -> dict[str, Any]:
        """How well the trained drafter's tau_needed predicts the speed of one with another acceptance length. beside: without
        drafting, by turns with `as_if`."""
        counted = _tau(list(as_if.values()))
        ratios = []
        for cell, found in as_if.items():
            with_it, plain = self.measured[drafting][cell], self.measured[NO_DRAFTING][cell]
            needed = _tau([with_it]) * plain.tokens_per_second / with_it.tokens_per_second
            ratios.append(_tau([found]) / needed * beside[cell].tokens_per_second / found.tokens_per_second)
        return {
            "asked_tau": AS_IF_TAU,
            "tau": round(counted, 3),
            "predicted": round(_mean(ratios), 3),
            "lowest": round(min(ratios), 3),
            "highest": round(max(ratios), 3),
        }

    def _break_even(self, workload: str) -> dict[str, str]:
        plain, *others = self._of(workload, HALVES[1])
        return {each.drafting.label: break_even(each, plain).says for each in others}

    def _taus(self, workload: str) -> dict[str, float]:
        return {each.drafting.label: round(each.tau, 3) for each in self._of(workload, HALVES[0]) if each.tau}

    def _replayed(self, workload: str, lookups: Sequence[Drafting]) -> dict[str, float]:
        """The lookups over the greedy answers of the server without drafting. Rounds without a draft do not count, as in the
        server's counters."""
        answers = self.measured[NO_DRAFTING][workload, 1, HALVES[0]].replies
        prompts, found = self.prompts[workload, HALVES[0]], {}
        for drafting in lookups:
            counts = [
                replay(NgramIndex(prompt), reply.token_ids, [], drafting.num_speculative_tokens)
                for prompt, reply in zip(prompts, answers, strict=True)
            ]
            found[drafting.label] = round(
                tau_of(sum(each.drafts for each in counts), sum(sum(each.accepted_at) for each in counts)), 3
            )
        return found

    def _same_text(self, drafting: Drafting) -> float:
        """Share of greedy answers, over all cells, that are those without drafting."""
        same = [
            one.token_ids == other.token_ids
            for cell, found in self.measured[drafting].items()
            for one, other in zip(found.replies, self.measured[NO_DRAFTING][cell].replies, strict=True)
        ]
        return round(sum(same) / len(same), 4)


def halves(prompts: Sequence[tuple[str, list[int]]]) -> dict[str, list[list[int]]]:
    """The prompts of either half; conversations go to the halves by turns."""
    fitting = [(name, ids) for name, ids in prompts if len(ids) <= LONGEST_PROMPT]
    place = {name: number for number, name in enumerate(dict.fromkeys(name for name, _ in fitting))}
    return {half: [ids for name, ids in fitting if place[name] % 2 == number] for number, half in enumerate(HALVES)}


def oasst(shared: Path) -> list[tuple[str, list[int]]]:
    """(tree, prompt): conversations up to a person's message, along the first replies of each tree, in the file's order."""
    tokenizer = load_tokenizer(shared / "models" / "house")
    found = []
    for number, line in enumerate((shared / "data" / "oasst_en_100_tree.jsonl").read_text().splitlines()):
        message, messages = json.loads(line)["prompt"], []
        while message:
            messages.append({"role": "user" if message["role"] == "prompter" else "assistant", "content": message["text"]})
            if message["role"] == "prompter":
                found.append((str(number), render_prompt(tokenizer, Row(f"oasst-{number}", messages))))
            message = next(iter(message["replies"]), None)
    return found


def _joined(parts: Sequence[ServedMeasure]) -> ServedMeasure:
    """Several measurements of one server as one."""
    counted = [each.acceptance for each in parts if each.acceptance is not None]
    acceptance = (
        ServedAcceptance(
            sum(each.drafts for each in counted),
            sum(each.drafted for each in counted),
            sum(each.accepted for each in counted),
            [sum(each) for each in zip_longest(*(one.accepted_at for one in counted), fillvalue=0)],
        )
        if counted
        else None
    )
    return ServedMeasure([reply for each in parts for reply in each.replies], sum(each.seconds for each in parts), acceptance)


def _scaled(found: ServedMeasure, slower: float) -> ServedMeasure:
    """A measurement as it would be on a machine on which the same takes 1 / slower as long."""
    replies = [replace(reply, latency_s=reply.latency_s / slower) for reply in found.replies]
    return ServedMeasure(replies, found.seconds / slower, found.acceptance)


def _tail(measured: ServedMeasure) -> float:
    return tail_s([reply.latency_s for reply in measured.replies])


def _tau(measured: Sequence[ServedMeasure]) -> float | None:
    counted = [each.acceptance for each in measured if each.acceptance is not None]
    drafts = sum(each.drafts for each in counted)
    return tau_of(drafts, sum(each.accepted for each in counted)) if drafts else None


def _mean(ratios: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


if __name__ == "__main__":
    main()
