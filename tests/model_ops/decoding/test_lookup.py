"""Drafters that look their drafts up: the decoder, the replay, and what each of them proposes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from exactness import greedy_text_is_the_targets, sampled_text_is_distributed_as_the_target, six_token_target
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import tiny_model

from model_ops.decoding import ModelDrafter, decode
from model_ops.decoding.incremental import IncrementalModel
from model_ops.drafting.drafts import NgramIndex
from model_ops.drafting.measure_acceptance import LookupDrafter, replay
from model_ops.drafting.suffix import SuffixCache, SuffixOptions

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


def prompts_of(count, longest=14, vocab=24, seed=2):
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, longest, (count,), generator=generator).tolist()
    return [torch.randint(3, vocab, (length,), generator=generator).tolist() for length in lengths]


@pytest.mark.parametrize("kind", ["ngram", "suffix"])
@pytest.mark.parametrize("temperature", [0.0, 0.4])
def test_decoding_equals_plain_decoding_and_its_replay(kind, temperature):
    """Text, rounds and acceptance; the suffix cache is shared, so its prompts are decoded one after another."""
    runner = IncrementalModel(tiny_model(layers=2, vocab_size=24, seed=5))
    prompts = sorted(prompts_of(24), key=len, reverse=True)  # the decoder's order
    ids = [f"r{place}" for place in range(24)]
    open_of = {"ngram": lambda: NgramIndex, "suffix": lambda: SuffixCache().open}[kind]
    options = {"eos_ids": {2, 7, 9}, "temperature": temperature, "max_new_tokens": 23, "seed": 7}
    drafted = decode(
        runner,
        prompts,
        ids,
        drafter=LookupDrafter(open_of()),
        num_speculative_tokens=3,
        batch_size=5 if kind == "ngram" else 1,
        **options,
    )
    plain = decode(runner, prompts, ids, beyond=3, batch_size=5, **options)
    open_index = open_of()
    for prompt, with_drafts, alone in zip(prompts, drafted, plain, strict=True):
        assert with_drafts.tokens == alone.tokens and with_drafts.finish_reason == alone.finish_reason
        assert len(alone.beyond) == 3 and with_drafts.beyond == alone.beyond[: len(with_drafts.beyond)]
        counts = replay(open_index(prompt), alone.tokens, alone.beyond, 3)
        assert (with_drafts.forwards, with_drafts.drafts, with_drafts.drafted) == counts[:3]
        assert with_drafts.accepted_at == counts.accepted_at
        assert 1 + with_drafts.forwards + with_drafts.accepted == len(with_drafts.tokens) + len(with_drafts.beyond)
    assert sum(answer.accepted for answer in drafted) > 5
    assert {answer.finish_reason for answer in drafted} == {"stop", "length"}
    assert sum(len(answer.beyond) for answer in drafted) > 0, "no answer ended inside a round: nothing was proven"


def test_drafts_beyond_the_end_count_as_a_server_counts_them():
    """Accepted drafts after the end-of-text token: verified before anyone knows that the answer has ended."""
    answer, beyond = [5, 6, 9], [5, 6, 9]
    counts = replay(NgramIndex([5, 6, 9, 5, 6, 9, 5, 6, 9]), answer, beyond, 4)
    assert counts == (1, 1, 4, [1, 1, 1, 1])  # 6, 9 end the answer, 5, 6 lie beyond it
    assert replay(NgramIndex([1, 2]), [], [], 4) == (0, 0, 0, [0, 0, 0, 0])
    assert replay(NgramIndex([1, 2]), [5, 6], [7], 2) == (1, 0, 0, [0, 0])


def earliest_longest(tokens, count):
    for length in range(min(4, len(tokens)), 0, -1):
        for start in range(len(tokens) - length):
            if tokens[start : start + length] == tokens[-length:]:
                return tokens[start + length : start + length + count]
    return []


@settings(max_examples=200, deadline=None)
@given(tokens=st.lists(st.integers(0, 3), min_size=1, max_size=40), count=st.integers(1, 5))
def test_ngram_index_finds_the_earliest_longest_match(tokens, count):
    index = NgramIndex(tokens[:1])
    index.extend(tokens[1:])
    assert index.propose(count) == earliest_longest(tokens, count)


def tree_draft(sequences, context, count, options):
    """The definition, by counting every occurrence: (score, draft) of the best suffix, longer matches winning ties. Shares and
    scores are float32, as in ArcticInference, so that what is a tie is the same."""
    best = (np.float32(0), [])
    for length in range(1, min(len(context), options.max_tree_depth)):
        after = [
            (s, i + length) for s in sequences for i in range(len(s) - length + 1) if s[i : i + length] == context[-length:]
        ]
        if not after:
            break
        limit = min(count, int(length * options.max_spec_factor + 1e-6), options.max_tree_depth - length)
        draft, probability, score = [], np.float32(1), np.float32(0)
        while len(draft) < limit:
            counts = {}
            for s, i in after:
                if i < len(s):
                    counts[s[i]] = counts.get(s[i], 0) + 1
                    if counts[s[i]] > max([0, *(n for t, n in counts.items() if t != s[i])]):
                        token = s[i]
            if not counts:
                break
            probability *= np.float32(counts[token]) / np.float32(len(after))
            if probability < np.float32(options.min_token_prob):
                break
            draft.append(token)
            score += probability
            after = [(s, i + 1) for s, i in after if i < len(s) and s[i] == token]
        if score >= best[0]:
            best = (score, draft)
    return best


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_suffix_drafts_follow_their_definition(data):
    """Against counting all occurrences in plain Python, over several requests that share what they answered. No product
    of shares comes near the probabilities at which drafts end, where float32 would decide."""
    tokens = st.integers(0, data.draw(st.sampled_from([1, 3, 9])))
    options = SuffixOptions(
        max_tree_depth=data.draw(st.sampled_from([3, 6, 24])),
        max_cached_requests=data.draw(st.sampled_from([0, 2, 100])),
        max_spec_factor=data.draw(st.sampled_from([0.5, 1.0, 2.0])),
        min_token_prob=data.draw(st.sampled_from([0.0511, 0.1513, 0.4111])),
    )
    cache, answers = SuffixCache(options), []
    for _ in range(data.draw(st.integers(1, 4))):
        prompt = data.draw(st.lists(tokens, min_size=1, max_size=12))
        index, answer = cache.open(prompt), []
        answers.append(answer)
        for _ in range(data.draw(st.integers(1, 3))):
            step = data.draw(st.lists(tokens, min_size=1, max_size=5))
            index.extend(step)
            answer += step
            context, count = [*prompt, *answer][-options.max_tree_depth :], data.draw(st.integers(1, 6))
            own = tree_draft([prompt + answer], context, count, options)
            kept = answers[-options.max_cached_requests :] if options.max_cached_requests else []
            other = tree_draft(kept, context, count, options)
            found = index.propose(count)
            assert found in (own[1], other[1])
            if abs(own[0] - other[0]) > 1e-5:
                assert found == max(own, other)[1]


def test_suffix_cache_learns_the_workloads_answers_and_forgets_the_oldest():
    options = SuffixOptions(max_cached_requests=2)
    cache = SuffixCache(options)
    cache.remember([11, 12, 13, 14, 15, 16])
    index = cache.open([1, 2, 3])
    index.extend([11, 12, 13])
    assert index.propose(3) == [14, 15, 16][:3]
    cache.remember([40, 41])  # the third: the first is forgotten
    assert index.propose(3) == []
    assert SuffixCache(SuffixOptions(max_cached_requests=0)).open([9, 8, 9]).propose(4) == [8]


def test_answers_that_grow_side_by_side_do_not_mix():
    cache = SuffixCache()
    index, parallel = cache.open([1, 2]), cache.open([7])
    for token in (20, 21, 22, 23):
        parallel.extend([token])
        index.extend([token + 30])
    late = cache.open([7])
    late.extend([50, 51])
    assert late.propose(4) == [52, 53]
    late.extend([52, 53])
    assert late.propose(4) == []


def test_suffix_text_grows_beyond_its_first_size_and_takes_any_token_id():
    cache = SuffixCache()
    index = cache.open([151_935, 7, *range(3_000)])
    index.extend([151_935])
    assert index.propose(4) == [7]
    assert cache.open([1]).propose(4) == []
