"""What is published, in a real vLLM server: it loads in both forms, says the same with and without its drafter, and accepts
as many drafts as the project's own decoder measured. The other kinds of drafters, trained here for the same target, too."""

import json
import os
from pathlib import Path

import pytest
import torch

from model_ops.drafting.drafts import Drafting
from model_ops.evaluation.token_scores import first_differences, scored_model
from model_ops.jobs import Job, Progress
from model_ops.quantization.quantized_model import load_quantized
from model_ops.serving.command import speculative_config, words_of
from model_ops.serving.cpu_dtype import dtype_words
from model_ops.speculators import operation as speculator
from model_ops.speculators.registry import ARCHITECTURES
from tests.serving.served_in_vllm import PROMPTS, K, offline_tau, same_texts, served

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("vllm")]

SAME_TAU = {0.0: 0.2, 1.0: 0.08}
"""Relative difference of acceptance lengths, by temperature. Greedily the toy repeats one token to the end, and a draft that
bfloat16 decides is then accepted in all rounds of an answer or in none: one of 40 answers moves the mean by 5 %."""
"""Relative; two samples of about 600 rounds each differ by about 3 % (one standard deviation)."""


def assert_served_as_decoded(parts, directory, measured):
    for run, temperature in zip(measured, (0.0, 1.0), strict=True):
        acceptance = run.acceptance
        decoded = offline_tau(parts.target, directory, parts.prompts, temperature)
        assert acceptance.tau == pytest.approx(decoded, rel=SAME_TAU[temperature])
        assert sum(acceptance.accepted_at) == acceptance.accepted and len(acceptance.accepted_at) == K
        assert acceptance.drafted == K * acceptance.drafts


def assert_only_ties_differ(parts, alone, drafted):
    """Where greedy answers part, the two tokens tie in bfloat16 by own layers of the int8 weights."""
    told = [
        {
            str(place): (prompt, reply.token_ids)
            for place, (prompt, reply) in enumerate(zip(parts.prompts, each.replies, strict=True))
        }
        for each in (alone, drafted)
    ]
    found = first_differences(scored_model(parts.target), *told)
    print(f"{len(found)} of {len(parts.prompts)} answers differ, gaps over bounds {[each.gap / each.bound for each in found]}")
    assert all(each.is_tie for each in found), found


def assert_own_layers_say(parts, replies):
    """Greedy tokens of the server are those of `load_quantized` after the same text, ties of bfloat16 apart."""
    dtype = torch.float32 if dtype_words("vllm", parts.target) else None  # as it is served here
    model, gaps = load_quantized(parts.target, dtype), []
    for prompt, reply in zip(parts.prompts, replies, strict=True):
        ids = torch.tensor([[*prompt, *reply.token_ids]])
        with torch.no_grad():
            logits = model(ids[:, :-1]).logits[0, len(prompt) - 1 :].float()
        gaps.append(logits.amax(-1) - logits.gather(1, ids[0, len(prompt) :, None])[:, 0])
    every = torch.cat(gaps)
    print(f"{(every == 0).sum()} of {len(every)} tokens are the same, largest gap {every.max():.4f}")
    assert (every == 0).float().mean() >= 0.98 and every.max() < 0.25


@pytest.fixture(scope="module")
def with_drafter(python, parts, tmp_path_factory):
    """Greedy answers and sampled ones of the target with its drafter."""
    config = speculative_config(ARCHITECTURES["eagle3"].vllm, str(parts.speculator), K)
    words = (parts.target, "--speculative-config", json.dumps(config))
    return served(python, tmp_path_factory.mktemp("with-drafter"), parts.prompts, [0, 1], *words)


def test_with_its_drafter_the_quantized_target_says_what_its_layers_compute_and_accepts_what_the_decoder_says(
    parts, with_drafter
):
    assert_own_layers_say(parts, with_drafter[0].replies)
    assert_served_as_decoded(parts, parts.speculator, with_drafter)


@pytest.mark.thorough
def test_without_a_drafter_it_says_the_same(parts, greedy_alone, with_drafter):
    assert_own_layers_say(parts, greedy_alone.replies)
    assert same_texts(greedy_alone, with_drafter[0]) >= 0.95 * PROMPTS, [
        (one.text, other.text) for one, other in zip(greedy_alone.replies[:3], with_drafter[0].replies[:3], strict=True)
    ]
    assert_only_ties_differ(parts, greedy_alone, with_drafter[0])


@pytest.mark.parametrize(
    "drafting",
    [
        pytest.param(Drafting(method="ngram", num_speculative_tokens=K), marks=pytest.mark.thorough),
        pytest.param(
            Drafting(method="drafter", num_speculative_tokens=K, by_batch_size=((1, 4, K), (5, 8, 1), (9, 9, 0))),
            marks=pytest.mark.thorough,
        ),
    ],
)
def test_a_drafting_that_a_release_chose_is_served_by_its_words(python, parts, greedy_alone, tmp_path, drafting):
    """16 requests at a time: with K by batch size, most of them are decoded without drafts, and the last ones with K."""
    target, _, _, *words = words_of(
        "vllm", str(parts.target), "m", str(parts.speculator), ARCHITECTURES["eagle3"].serving, K, drafting
    )
    (greedy,) = served(python, tmp_path, parts.prompts, [0], target, *words)
    assert same_texts(greedy_alone, greedy) >= 0.95 * PROMPTS and greedy.acceptance.drafts > 0
    assert_only_ties_differ(parts, greedy_alone, greedy)
    if drafting.by_batch_size:
        assert 0 < greedy.acceptance.drafted < K * greedy.acceptance.drafts


@pytest.mark.thorough
def test_the_twin_alone_is_all_a_server_needs(python, parts, greedy_alone):
    """`vllm serve DIR/speculators`, started where target and drafter are found by the path in its config."""
    around_both = os.path.commonpath([parts.target.resolve(), parts.speculator.resolve()])
    twin = os.path.relpath((parts.speculator / "speculators").resolve(), around_both)
    (greedy,) = served(python, Path(around_both), parts.prompts, [0], twin)
    assert same_texts(greedy_alone, greedy) >= 0.95 * PROMPTS and greedy.acceptance.drafts > 0
    assert len(greedy.acceptance.accepted_at) == K


@pytest.mark.thorough
@pytest.mark.parametrize("architecture", ["dflash"])
def test_every_drafter_that_vllm_runs_is_served_as_it_was_decoded(python, parts, greedy_alone, tmp_path, architecture):
    drafter = tmp_path / "head"  # vLLM takes a path that names another kind for that kind
    speculator.run(
        Job(
            operation="speculator",
            output=drafter,
            inputs={"target": parts.target, "dataset": parts.answers},
            settings={
                "architecture": architecture,
                "steps": 60,
                "optimizer": "muon",
                "learning_rate": 1e-2,
                "tokens_per_step": 1_024,
                "max_length": 512,
                "num_speculative_tokens": K,
            },
        ),
        Progress(),
    )
    config = speculative_config(ARCHITECTURES[architecture].vllm, str(drafter), K)
    measured = served(python, tmp_path, parts.prompts, [0, 1], parts.target, "--speculative-config", json.dumps(config))
    assert same_texts(greedy_alone, measured[0]) >= 0.95 * PROMPTS
    assert measured[0].acceptance.tau > 1.1
    assert_served_as_decoded(parts, drafter, measured)
