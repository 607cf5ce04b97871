"""The distilled student as a draft model for its teacher: acceptance on held-out prompts, cost of a token, estimated speed-up.

    found = student_drafts(job, settings, progress)           # writes student_acceptance.parquet
    found.summary, found.speed                                # for report.json and speed.json
    alpha = acceptance_chance(drafts=100, accepted_at=[80, 60, 45])
    best = best_length(alpha, cost=0.2, longest=8)            # BestLength(num_speculative_tokens=4, speed_up=2.0...)

A student has its teacher's tokenizer, so a server can let it draft for the teacher as it is (vLLM's method `draft_model`,
SGLang's STANDALONE), without training a drafter. Acceptance is measured as that of every drafter, with the teacher as the
target, at each temperature and as the traffic is sampled.

The speed-up is an estimate: Leviathan et al. 2023 (arXiv 2211.17192), theorem 3.8, which assumes that every draft is accepted
with the same chance, independent of the others, and that the target verifies all drafts in the time of one token. The cost of a
token is counted in the weights that it is multiplied with, student's over teacher's, which is what a server at a small batch
waits for; it does not depend on the machine. The measured tokens/s of both models are a record of the run, in speed.json.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from transformers import AutoModelForCausalLM, PreTrainedConfig

from model_ops.decoding import ModelDrafter, Prompt, Runner, choose_prompts, load_runner, read_prompts
from model_ops.drafting import AcceptanceRow, measure, summarize
from model_ops.evaluation.acceptances import measured_in_mode
from model_ops.evaluation.finished_parts import finished
from model_ops.evaluation.likelihoods import teacher_of_student
from model_ops.evaluation.measurement import OVER_PROMPTS, Measurement
from model_ops.evaluation.row_tables import ACCEPTANCE_ROWS
from model_ops.evaluation.sampling_modes import Mode, modes
from model_ops.evaluation.settings import EvaluateSettings
from model_ops.files import bare
from model_ops.jobs import Job, ModelError, Progress
from model_ops.models import end_of_text_ids, load_tokenizer
from model_ops.speculators import check_shared_vocabulary
from model_ops.training import matrix_work

STUDENT = "student"


@dataclass
class StudentDrafts:
    """Acceptance of the student as the draft model of its teacher."""

    summary: dict[str, Any] = field(default_factory=dict)
    """The report's `student_drafts`: teacher, cost, one entry for each way of sampling; or `skipped`, the reason; {} for a
    job without student and teacher."""
    speed: dict[str, float] = field(default_factory=dict)
    """Tokens per second of both models alone, and the cost of a token of each."""
    measurements: list[Measurement] = field(default_factory=list)


def student_drafts(job: Job, settings: EvaluateSettings, progress: Progress) -> StudentDrafts:
    """Measures the student as its teacher's drafter; nothing if the job has no student or no teacher, the settings switch it
    off, or the student is the drafter that `acceptances` measures."""
    result, teacher, asked = StudentDrafts(), teacher_of_student(job), settings.student_drafts
    if STUDENT not in job.inputs or teacher is None or not asked.prompts:
        return result
    if "draft_model" in job.inputs and job.inputs["draft_model"].resolve() == job.inputs[STUDENT].resolve():
        return result
    result.summary = {"teacher": teacher}
    try:
        check_shared_vocabulary("the student", job.inputs[STUDENT], job.inputs[teacher])
        _measure(
            result, job, teacher, settings.model_copy(update={"num_speculative_tokens": asked.num_speculative_tokens}), progress
        )
    except ModelError as error:
        result.summary = {"teacher": teacher, "skipped": str(error)}
    return result


def headline(summary: dict[str, Any]) -> dict[str, float]:
    """Flat numbers for tables and curves, of the report's `student_drafts`."""
    numbers = {"student_token_cost": summary["cost"]} if "cost" in summary else {}
    for each in summary.get("samplings", []):
        numbers |= {
            f"tau_student_{each['key']}": each["tau"],
            f"tau_student_{each['key']}_low": each["tau_low"],
            f"tau_student_{each['key']}_high": each["tau_high"],
            f"student_speed_up_estimate_{each['key']}": each["speed_up"],
            f"student_best_drafts_{each['key']}": each["best_num_speculative_tokens"],
        }
    return numbers


def _measure(result: StudentDrafts, job: Job, teacher: str, settings: EvaluateSettings, progress: Progress) -> None:
    target, drafts = job.inputs[teacher], settings.num_speculative_tokens
    runner, small = load_runner(target), load_runner(job.inputs[STUDENT])
    room = min(
        settings.max_length,
        runner.max_positions - settings.max_new_tokens,
        small.max_positions - settings.max_new_tokens - drafts,
    )
    read = read_prompts(job.inputs["dataset"], "test", load_tokenizer(target))
    fitting = [prompt for prompt in read if 0 < len(prompt.ids) <= room]
    prompts = choose_prompts(fitting, settings.student_drafts.prompts, settings.seed)
    if not prompts:
        raise ModelError(
            f"the {len(read)} test prompts are all longer than {room} tokens: raise max_length or lower max_new_tokens"
        )
    eos_ids = end_of_text_ids(target)
    work = {role: weights_of_a_token(each.config) for role, each in (("teacher", runner), (STUDENT, small))}
    cost = work[STUDENT] / work["teacher"]
    result.summary |= {"num_speculative_tokens": drafts, "cost": cost, "weights_of_a_token": work, "samplings": []}
    result.speed = _speed(job, settings, {"teacher": runner, STUDENT: small}, prompts, eos_ids)
    drafter = ModelDrafter(small, runner.embedding.shape[0])
    rows: dict[str, list[AcceptanceRow]] = {}
    every = modes(target, job.inputs.get("served"), prompts, settings.temperatures)
    for done, mode in enumerate(every):
        progress.stop_if_requested()
        progress.report("student as a drafter", done, len(every), "ways of sampling")
        if mode.same_as is not None:
            rows[mode.label] = [replace(row, sampling=mode.label) for row in rows[mode.same_as]]
        else:
            rows[mode.label] = measured_in_mode(
                job, settings, runner, {STUDENT: drafter}, {}, mode, eos_ids, part="student-drafts", target_alone=False
            ).rows
        _summarise(result, settings, mode, rows[mode.label], cost, teacher)
    progress.report("student as a drafter", len(every), len(every), "ways of sampling")
    written = [asdict(row) for several in rows.values() for row in several]
    pq.write_table(pa.Table.from_pylist(written, schema=bare(ACCEPTANCE_ROWS)), job.output / "student_acceptance.parquet")


def weights_of_a_token(config: PreTrainedConfig) -> float:
    """Weights that one token is multiplied with in a causal language model, with the head and the experts that it uses."""
    with torch.device("meta"):
        work = matrix_work(AutoModelForCausalLM.from_config(config))
    return work.trained + work.frozen + work.head


def _speed(
    job: Job, settings: EvaluateSettings, runners: dict[str, Runner], prompts: list[Prompt], eos_ids: frozenset[int]
) -> dict[str, float]:
    """Tokens/s of each model's own greedy answers to the same prompts, reading them included, and the cost by these."""

    def timed(runner: Runner) -> float:
        return measure(
            runner,
            {},
            prompts,
            eos_ids=eos_ids,
            temperature=0,
            max_new_tokens=settings.max_new_tokens,
            num_speculative_tokens=0,
            batch_size=settings.batch_size,
            seed=settings.seed,
        ).tokens_per_second["none"]

    rates = finished(job, "student-drafts-speed", lambda: {role: timed(runner) for role, runner in runners.items()})
    return {
        **{f"{role}_tokens_per_second": rate for role, rate in rates.items()},
        "measured_cost": rates["teacher"] / rates[STUDENT],
    }


def _summarise(
    result: StudentDrafts, settings: EvaluateSettings, mode: Mode, rows: list[AcceptanceRow], cost: float, teacher: str
) -> None:
    totals = summarize(rows)
    counts = np.array([row.accepted_at for row in rows]).sum(axis=0).tolist()
    alpha = acceptance_chance(totals["drafts"], counts)
    best = best_length(alpha, cost, settings.num_speculative_tokens)
    result.summary["samplings"].append(
        {
            "sampling": mode.label,
            "key": mode.key,
            "temperature": mode.temperature,
            **totals,
            "alpha": alpha,
            "best_num_speculative_tokens": best.num_speculative_tokens,
            "speed_up": best.speed_up,
        }
    )
    result.measurements.append(
        Measurement(
            what="acceptance_length",
            of=STUDENT,
            against=teacher,
            sampling=mode.label,
            value=totals["tau"],
            low=totals["tau_low"],
            high=totals["tau_high"],
            n=len(rows),
            counted="prompts",
            unit="tokens per forward",
            method=OVER_PROMPTS,
        )
    )
    result.measurements.append(
        Measurement(
            what="speed_up_estimate",
            of=STUDENT,
            against=teacher,
            sampling=mode.label,
            value=best.speed_up,
            n=len(rows),
            counted="prompts",
            unit="ratio",
            method=f"arXiv 2211.17192, theorem 3.8: alpha {alpha:.4f}, cost {cost:.4f}, {best.num_speculative_tokens} drafts",
        )
    )


@dataclass(frozen=True)
class BestLength:
    """The number of drafts with the largest estimated speed-up; 0 drafts and a speed-up of 1 if drafting costs more than it
    gains."""

    num_speculative_tokens: int
    speed_up: float


def acceptance_chance(drafts: int, accepted_at: Sequence[int]) -> float:
    """alpha: the chance that a draft is accepted where all drafts before it were; the maximum likelihood estimate over rounds.

    drafts: rounds. accepted_at: rounds that accepted the drafts up to and including position 0, 1, ... A round tries position i
    if it accepted all positions before it. 0 without a round.
    """
    tried = drafts + sum(accepted_at[:-1])
    return sum(accepted_at) / tried if tried else 0.0


def expected_speed_up(alpha: float, num_speculative_tokens: int, cost: float) -> float:
    """Expected improvement in time: (1 - alpha^(k + 1)) / ((1 - alpha) (k cost + 1)), with k drafts a round.

    cost: time of one token of the draft model over that of the target.
    """
    rounds = num_speculative_tokens + 1
    tokens = rounds if alpha == 1 else (1 - alpha**rounds) / (1 - alpha)
    return tokens / (num_speculative_tokens * cost + 1)


def best_length(alpha: float, cost: float, longest: int) -> BestLength:
    """The best of 0 to `longest` drafts a round; the fewest where several are equal."""
    found = [BestLength(drafts, expected_speed_up(alpha, drafts, cost)) for drafts in range(longest + 1)]
    return max(found, key=lambda each: (each.speed_up, -each.num_speculative_tokens))
