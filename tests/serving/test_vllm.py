"""What is published, in a real vLLM server: it loads in both forms, says the same with and without its drafter, and accepts
as many drafts as the project's own decoder measured."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from benchmarks.vllm_environment import vllm_python
from benchmarks.vllm_server import vllm_server
from model_ops.decoding.served import measure_served
from resources.lake import Lake
from resources.registry import Registry

PROMPTS, NEW_TOKENS, K = 40, 48, 3
SAME_TAU = 0.08
"""Relative; two samples of about 600 rounds each differ by about 3 % (one standard deviation)."""
SAMPLED = {"draft_sample_method": "probabilistic", "rejection_sample_method": "standard"}


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


def served(python, folder, prompts, temperatures, *words):
    """A run of all prompts at each temperature, in one server."""
    with vllm_server(python, *words, "--max-model-len", "512", folder=folder) as server:
        return [measure_served(server, prompts, concurrency=16, max_tokens=NEW_TOKENS, temperature=temperature)
                for temperature in temperatures]


@pytest.fixture(scope="module")
def greedy_alone(python, parts, tmp_path_factory):
    return served(python, tmp_path_factory.mktemp("alone"), parts[2], [0], parts[0])[0]


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
def test_with_its_drafter_the_target_says_the_same_and_accepts_what_the_decoder_says(python, parts, greedy_alone, tmp_path):
    target, speculator, prompts = parts
    config = {"method": "eagle3", "model": str(speculator), "num_speculative_tokens": K, **SAMPLED}
    greedy, sampled = served(python, tmp_path, prompts, [0, 1], target, "--speculative-config", json.dumps(config))
    same = sum(one.token_ids == other.token_ids for one, other in zip(greedy_alone.replies, greedy.replies, strict=True))
    assert same >= 0.95 * len(prompts), [(one.text, other.text) for one, other in zip(
        greedy_alone.replies[:3], greedy.replies[:3], strict=True)]
    for measured, temperature in ((greedy, 0.0), (sampled, 1.0)):
        assert measured.acceptance.tau == pytest.approx(offline_tau(parts, temperature), rel=SAME_TAU)
        assert sum(measured.acceptance.accepted_at) == measured.acceptance.accepted
        assert len(measured.acceptance.accepted_at) == K and measured.acceptance.drafted == K * measured.acceptance.drafts


@pytest.mark.slow
def test_the_twin_alone_is_all_a_server_needs(python, parts, greedy_alone):
    """`vllm serve DIR/speculators`, started where target and drafter are found by the path in its config."""
    target, speculator, prompts = parts
    around_both = os.path.commonpath([target.resolve(), speculator.resolve()])
    twin = os.path.relpath((speculator / "speculators").resolve(), around_both)
    (greedy,) = served(python, Path(around_both), prompts, [0], twin)
    same = sum(one.token_ids == other.token_ids for one, other in zip(greedy_alone.replies, greedy.replies, strict=True))
    assert same >= 0.95 * len(prompts) and greedy.acceptance.drafts > 0
    assert len(greedy.acceptance.accepted_at) == K
