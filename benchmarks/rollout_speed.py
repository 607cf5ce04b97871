"""How much faster rollouts in process are with a drafter, and whether their answers keep the model's distribution.

    python -m benchmarks.rollout_speed --shared ../shared               # about 35 minutes on 2 idle cores
    python -m benchmarks.rollout_speed --shared ../shared --quick       # few answers, 30 steps of training; nothing is recorded
    python -m benchmarks.rollout_speed --drafter DIR                    # a drafter of models/house that exists already

The house model (10M parameters) answers PROMPTS held-out prompts of its three workloads ANSWERS times each, up to NEW_TOKENS
tokens at temperature 1, as a round of `rft` does: without a drafter and with each one in turns, REPEATS times. ngram and suffix
look drafts up; eagle3 is trained here on the model's own answers to other prompts. ratio: tokens/s over those without a
drafter in the same turn, [median, least, greatest]; BATCHES: answers at a time, of which the first is the recipe's default.

exact: SHORT_ROWS answers of four tokens to one prompt with each drafter, few at a time, so that it drafts. With the model's own
probabilities in falling order, a token t stands at u = P(likelier tokens) + v P(t), v uniform; where the model's distribution
is kept, the u of a row are independent and uniform, whatever the vocabulary (Rosenblatt 1952). p: of Pearson's chi-squared over
CUTS^3 cells of the u of the second to the fourth token, which are drafted. log_probs: the largest difference of a token's
log-probability to the model's own.

Last line: {ratio: of the best drafter at the default, exact: the least p, by_batch: {BATCH: {tokens_per_second,
DRAFTER: {ratio}}}, exactness: {DRAFTER: {p, log_probs}}}.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from benchmarks.drafter_served import trained
from benchmarks.house import House, mixed
from benchmarks.one_case import PROJECT
from benchmarks.record import record
from model_ops.answers import InProcessEngine, Sampled
from model_ops.models import end_of_text_ids, load_model
from model_ops.operations.rollout_engine import rollout_drafting
from model_ops.reinforcement import RftSettings

THREADS, REPEATS = 2, 3
PROMPTS, ANSWERS, NEW_TOKENS, BATCHES = 32, 8, 128, (128, 16)
LONGEST_PROMPT = 400
SHORT_ROWS, SHORT_BATCH, CUTS = 6_000, 8, 4
SHORT_PROMPT = 12
"""Tokens of the prompt of the short answers: the first ones of a held-out prompt."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rollout_speed", description=__doc__.splitlines()[0])
    parser.add_argument("--shared", type=Path, default=PROJECT.parent / "shared", help="folder with models/house and data")
    parser.add_argument("--drafter", type=Path, help="a drafter's directory; one is trained where left out")
    parser.add_argument("--quick", action="store_true", help="few answers, a drafter of 30 steps; nothing is recorded")
    given = parser.parse_args()
    torch.set_num_threads(THREADS)
    with tempfile.TemporaryDirectory(prefix="millrace-rollout-speed-") as made:
        folder, house = Path(made), House(given.shared.resolve(), Path(made))
        drafter = given.drafter
        if drafter is None:
            answers = house.answers(rows=400 if given.quick else None)
            trained(folder, house.target, answers, 30 if given.quick else None)
            drafter = folder / "drafter"
        names = {"ngram": "ngram", "suffix": "suffix", "eagle3": str(drafter)}
        figures = measured(house, names, given.quick)
    record("rollout_speed", figures, keep=not given.quick and given.drafter is None)


def measured(house: House, names: dict[str, str], quick: bool) -> dict[str, Any]:
    model, ends = load_model(house.target), end_of_text_ids(house.target)
    short = {name: [each for each in found if len(each.ids) <= LONGEST_PROMPT] for name, found in house.prompts.items()}
    chosen = [prompt.ids for prompt in mixed(short, 6 if quick else PROMPTS)]
    by_batch = {}
    for batch in BATCHES:
        engines = {
            name: engine_of(house, model, ends, drafter, batch, NEW_TOKENS) for name, drafter in {"": None, **names}.items()
        }
        by_batch[batch] = timed(engines, chosen, 1 if quick else REPEATS)
        print(json.dumps({batch: by_batch[batch]}), flush=True)
    exactness = {}
    for name, drafter in names.items():
        engine = engine_of(house, model, set(), drafter, SHORT_BATCH, 4)
        exactness[name] = exact(model, engine, chosen[0][:SHORT_PROMPT], 600 if quick else SHORT_ROWS)
        print(json.dumps({name: exactness[name]}), flush=True)
    return {
        "ratio": max(by_batch[BATCHES[0]][name]["ratio"][0] for name in names),
        "exact": min(each["p"] for each in exactness.values()),
        "by_batch": by_batch,
        "exactness": exactness,
    }


def engine_of(house: House, model: Any, ends: set[int], drafter: str | None, batch: int, tokens: int) -> InProcessEngine:
    settings = RftSettings.model_validate({"grader": "verifier", "batch_size": batch, "max_new_tokens": tokens}).resolved()
    engine = InProcessEngine(model, ends, settings, rollout_drafting(drafter, model, house.target))
    engine.sync(0)
    return engine


def timed(engines: dict[str, InProcessEngine], prompts: Sequence[Sequence[int]], repeats: int) -> dict[str, Any]:
    asked = [np.array(ids, np.int32) for ids in prompts for _ in range(ANSWERS)]
    rates: dict[str, list[float]] = {name: [] for name in engines}
    for turn in range(repeats + 1):
        for name, engine in engines.items():
            began_s = time.perf_counter()
            said = engine.sample(asked, [str(place) for place in range(len(asked))], seed=turn)
            if turn:  # the first turn warms up
                rates[name].append(sum(len(each.tokens) for each in said) / (time.perf_counter() - began_s))
    alone = rates.pop("")
    found: dict[str, Any] = {"tokens_per_second": round(median(alone), 1)}
    for name, each in rates.items():
        ratios = [one / other for one, other in zip(each, alone, strict=True)]
        found[name] = {"ratio": [round(value, 3) for value in (median(ratios), min(ratios), max(ratios))]}
    return found


@torch.no_grad()
def exact(model: Any, engine: InProcessEngine, prompt: Sequence[int], rows: int) -> dict[str, float]:
    said = engine.sample([np.array(prompt, np.int32)] * rows, [f"short:{row}" for row in range(rows)], seed=0)
    drawn, places, gap = torch.Generator().manual_seed(1), [], 0.0
    for begin in range(0, rows, 500):
        part = said[begin : begin + 500]
        of_part, gap_of_part = standing(model, prompt, part, torch.rand(len(part), 4, generator=drawn))
        places, gap = [*places, of_part], max(gap, gap_of_part)
    cells = (torch.cat(places)[:, 1:] * CUTS).long().clamp(max=CUTS - 1) @ torch.tensor([CUTS * CUTS, CUTS, 1])
    count, expected = torch.bincount(cells, minlength=CUTS**3).double(), rows / CUTS**3
    statistic = ((count - expected) ** 2 / expected).sum()
    p = torch.special.gammaincc(torch.tensor((CUTS**3 - 1) / 2).double(), statistic / 2)
    return {"p": round(float(p), 4), "log_probs": gap}


def standing(model: Any, prompt: Sequence[int], said: Sequence[Sampled], drawn: torch.Tensor) -> tuple[torch.Tensor, float]:
    """(u of each token [rows, tokens], largest difference of a log-probability). drawn: v."""
    answers = torch.tensor(np.array([each.tokens for each in said])).long()
    ids = torch.cat((torch.tensor(prompt).expand(len(said), -1), answers), dim=1)
    logs = model(ids[:, :-1]).logits[:, len(prompt) - 1 :].float().log_softmax(-1)
    own = logs.gather(-1, answers[:, :, None])
    told = torch.tensor(np.array([each.log_probs for each in said]))
    before = torch.where(logs > own, logs.exp(), 0.0).sum(-1)
    return before + drawn * own.squeeze(-1).exp(), float((own.squeeze(-1) - told).abs().max())


if __name__ == "__main__":
    main()
