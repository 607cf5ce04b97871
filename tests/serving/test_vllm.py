"""What is published, in a real vLLM server engine: it loads, says the same with and without its drafter, and accepts as
many drafts as the project's own decoder measured."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from vllm_environment import vllm_python

from resources.lake import Lake
from resources.registry import Registry

SCRIPT = Path(__file__).with_name("serve_in_vllm.py")
PROMPTS, NEW_TOKENS, K = 40, 48, 3
SAME_TAU = 0.08
"""Relative; two samples of about 600 rounds each differ by about 3 % (one standard deviation)."""


@pytest.fixture(scope="module")
def python():
    try:
        return vllm_python()
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no vLLM could be installed here: {' '.join(map(str, error.cmd))[:200]}")


@pytest.fixture(scope="module")
def parts(toy):
    import pyarrow.parquet as pq

    registry = Registry(Lake.open(toy.lake), toy.workload)
    target = registry.directory(registry.current("model", "quantized_model"))
    speculator = registry.directory(registry.current("model", "speculator"))
    rows = registry.directory(registry.current("dataset", "speculator_dataset")) / "train.parquet"
    prompts = [ids for ids in pq.read_table(rows)["prompt_token_ids"].to_pylist() if len(ids) < 400][:PROMPTS]
    return target, speculator, prompts


def served(python, folder, parts, temperature, drafted):
    target, speculator, prompts = parts
    job = folder / f"job-{temperature}-{drafted}.json"
    job.write_text(json.dumps({
        "model": str(target), "speculator": str(speculator) if drafted else None, "k": K, "prompts": prompts,
        "temperature": temperature, "max_tokens": NEW_TOKENS, "max_model_len": 512,
    }))
    done = subprocess.run([python, SCRIPT, job], capture_output=True, text=True, timeout=900, env={
        **os.environ, "OMP_NUM_THREADS": "2", "VLLM_LOGGING_LEVEL": "WARNING"})
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


def offline_tau(parts, temperature):
    import torch

    from model_ops.decoding.decode import decode
    from model_ops.models.target import end_of_text_ids, load_runner
    from model_ops.speculators.draft_model import load_draft_model

    torch.set_num_threads(2)
    target, speculator, prompts = parts
    runner = load_runner(target)
    answers = decode(
        runner, prompts, [str(number) for number in range(len(prompts))], eos_ids=end_of_text_ids(target),
        temperature=temperature, max_new_tokens=NEW_TOKENS, num_speculative_tokens=K,
        drafter=load_draft_model(speculator, runner.dtype).drafter(),
    )
    return 1 + sum(answer.accepted for answer in answers) / sum(answer.drafts for answer in answers)


@pytest.mark.slow
def test_greedy_text_is_the_same_with_and_without_the_drafter(python, parts, tmp_path):
    alone = served(python, tmp_path, parts, 0.0, drafted=False)
    drafted = served(python, tmp_path, parts, 0.0, drafted=True)
    same = sum(a == b for a, b in zip(alone["answers"], drafted["answers"], strict=True))
    assert same >= 0.95 * len(alone["answers"]), (alone["texts"][:3], drafted["texts"][:3])
    assert drafted["tau"] == pytest.approx(offline_tau(parts, 0.0), rel=SAME_TAU)


@pytest.mark.slow
def test_sampled_drafts_are_accepted_as_often_as_the_exact_decoder_says(python, parts, tmp_path):
    drafted = served(python, tmp_path, parts, 1.0, drafted=True)
    assert drafted["tau"] == pytest.approx(offline_tau(parts, 1.0), rel=SAME_TAU)
