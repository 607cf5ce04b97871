"""The toy lake's prompts in a vLLM server and in the project's own decoder."""

from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq

from benchmarks.vllm_server import vllm_server
from model_ops.completions.served import measure_served
from model_ops.decoding.decode_loop import decode
from model_ops.decoding.target import load_runner
from model_ops.models.model_directory import end_of_text_ids
from model_ops.speculators.factory import load_draft_model
from resources.artefacts.registry import Registry
from resources.lake.lake import LakeLayout

PROMPTS, NEW_TOKENS, K = 40, 48, 3


@dataclass(frozen=True)
class Parts:
    """What the toy graph published, and prompts that its drafter was trained on."""

    target: Path
    speculator: Path
    answers: Path
    prompts: list[list[int]]

    @classmethod
    def of(cls, toy):
        registry = Registry(LakeLayout.open(toy.lake), toy.workload)
        target, speculator, answers = (
            registry.directory(registry.current(kind, name))
            for kind, name in (("model", "quantized_model"), ("model", "speculator"), ("dataset", "speculator_dataset"))
        )
        rows = pq.read_table(answers / "train.parquet")["prompt_token_ids"].to_pylist()
        return cls(target, speculator, answers, [ids for ids in rows if len(ids) < 400][:PROMPTS])


def served(python, folder, prompts, temperatures, *words):
    """A run of all prompts at each temperature, in one server of one thread: another one may run beside it."""
    with vllm_server(python, *words, "--max-model-len", "512", folder=folder, threads=1) as server:
        return [
            measure_served(server, prompts, concurrency=16, max_tokens=NEW_TOKENS, temperature=temperature)
            for temperature in temperatures
        ]


def offline_tau(target, speculator, prompts, temperature):
    """The exact decoder's acceptance length, of a drafter as servers draft with it."""
    runner = load_runner(target)
    model = load_draft_model(speculator, runner.dtype).attach(runner)
    answers = decode(
        runner,
        prompts,
        [str(number) for number in range(len(prompts))],
        eos_ids=end_of_text_ids(target),
        temperature=temperature,
        max_new_tokens=NEW_TOKENS,
        num_speculative_tokens=K,
        drafter=model.drafter(),
    )
    return 1 + sum(answer.accepted for answer in answers) / sum(answer.drafts for answer in answers)


def same_texts(one, other):
    """How many replies of two runs are the same, token by token."""
    return sum(a.token_ids == b.token_ids for a, b in zip(one.replies, other.replies, strict=True))
