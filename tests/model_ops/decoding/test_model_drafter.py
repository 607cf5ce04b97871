"""A language model as the drafter: exact text, drafts that are its own greedy text, and a twin that is never rejected."""

from __future__ import annotations

import pytest
import torch
from exactness import greedy_text_is_the_targets, sampled_text_is_distributed_as_the_target, six_token_target
from tiny_models import tiny_model

from model_ops.decoding.decode_loop import decode
from model_ops.decoding.drafters import ModelDrafter
from model_ops.decoding.incremental import IncrementalModel

PROMPTS = [[3, 9, 4, 70, 8], [5], [6, 6, 31], [40, 41, 42, 43, 44, 45, 46]]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_target_itself_as_drafter_is_never_rejected(temperature):
    runner = IncrementalModel(tiny_model(layers=2, eos_token_id=None))
    drafter = ModelDrafter(IncrementalModel(tiny_model(layers=2, eos_token_id=None)), 96)
    answers = decode(
        runner,
        PROMPTS,
        list("abcd"),
        eos_ids=set(),
        temperature=temperature,
        max_new_tokens=21,
        drafter=drafter,
        num_speculative_tokens=3,
    )
    assert all(answer.accepted == answer.drafted == 15 and answer.forwards == 5 for answer in answers)


def test_greedy_text_is_the_targets_and_drafts_are_the_drafters_own():
    target, small = tiny_model(layers=2, seed=4), tiny_model(layers=2, seed=4)
    for parameter in small.parameters():
        parameter.data += 0.05 * torch.randn_like(parameter)  # right now and then, wrong now and then
    runner = IncrementalModel(target)
    greedy_text_is_the_targets(target, ModelDrafter(IncrementalModel(small), 96))
    seen = []

    class Watched(ModelDrafter):
        def propose(self, count, temperature, uniforms):
            proposal = super().propose(count, temperature, uniforms)
            seen.append(proposal.tokens[0].tolist())
            return proposal

    options = {"eos_ids": set(), "temperature": 0.0, "max_new_tokens": 16}
    watched = Watched(IncrementalModel(small), 96)
    (answer,) = decode(runner, PROMPTS[:1], ["a"], drafter=watched, num_speculative_tokens=3, **options)
    place = 1
    for drafts in seen:  # each round's drafts are what the small model says after the text so far
        text = PROMPTS[0] + answer.tokens[:place]
        for draft in drafts:
            with torch.no_grad():
                assert int(small(torch.tensor([text])).logits[0, -1, :96].argmax()) == draft
            text.append(draft)
        accepted = 0
        while accepted < 3 and answer.tokens[place + accepted : place + accepted + 1] == drafts[accepted : accepted + 1]:
            accepted += 1
        place += accepted + 1
    assert len(seen) == answer.forwards and 0 < answer.accepted < answer.drafted


@pytest.mark.parametrize("greedy", [False, True])
def test_sampled_text_is_distributed_as_the_target(greedy):
    drafter = ModelDrafter(IncrementalModel(tiny_model(layers=1, vocab_size=5, seed=9)), 6, greedy)
    answers = sampled_text_is_distributed_as_the_target(six_token_target(), drafter)
    assert 0 < sum(answer.accepted for answer in answers) < sum(answer.drafted for answer in answers)
