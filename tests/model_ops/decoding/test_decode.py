"""The decoder: greedy text is the target's own, sampled text follows its distribution, batches do not matter."""

from __future__ import annotations

from itertools import pairwise, product

import pytest
import torch
from exactness import sampled_text_is_distributed_as_the_target, six_token_target
from fake_vllm import fake_vllm
from hypothesis import given
from hypothesis import strategies as st
from tiny_models import tiny_model

from model_ops.completions.served import ServedModel, measure_served, read_counters
from model_ops.decoding import Proposal, Truncation
from model_ops.decoding.decode_loop import batches, cost_of_rounds, decode
from model_ops.decoding.incremental import IncrementalModel
from model_ops.drafting.drafts import NgramIndex
from model_ops.drafting.measure_acceptance import LookupDrafter
from model_ops.jobs import ModelError


def test_token_ids_go_in_and_come_out_and_only_this_runs_drafts_are_counted():
    with fake_vllm(latency_s=0.02) as (url, seen), ServedModel(url + "/v1/", api_key="secret") as server:
        measured = measure_served(server, [[1, 2], [3]], concurrency=1, max_tokens=6, temperature=1.0, seed=10, ignore_eos=True)
    assert [request["path"] for request in seen] == ["/v1/completions"] * 2
    assert seen[0]["body"] == {
        "model": "m",
        "temperature": 1.0,
        "max_tokens": 6,
        "seed": 10,
        "ignore_eos": True,
        "prompt": [1, 2],
        "return_token_ids": True,
    }
    assert seen[1]["body"]["seed"] == 11 and seen[1]["headers"]["Authorization"] == "Bearer secret"
    assert measured.replies[0].token_ids == [5] * 6 and measured.tokens == 12
    counted = measured.acceptance
    assert (counted.drafts, counted.drafted, counted.accepted, counted.accepted_at) == (6, 12, 6, [4, 2])
    assert counted.tau == 2.0
    assert 0.02 <= measured.latency_s["p50"] <= measured.latency_s["p90"] <= measured.latency_s["p99"]
    assert measured.tokens_per_second == pytest.approx(12 / measured.seconds) and measured.seconds >= 0.04


def test_messages_and_tools_are_sent_as_a_chat_several_at_a_time():
    chat, tool = [{"role": "user", "content": "2 and 2"}], {"type": "function", "function": {"name": "add"}}
    with fake_vllm(latency_s=0.2, drafting=False) as (url, seen), ServedModel(url, model="mine") as server:
        measured = measure_served(server, [chat] * 6, tools=[[tool], *[None] * 5], concurrency=6, max_tokens=9)
    assert {request["path"] for request in seen} == {"/v1/chat/completions"}
    assert sum("tools" in request["body"] for request in seen) == 1 and seen[0]["body"]["model"] == "mine"
    assert measured.acceptance is None and measured.replies[0].text == "four" and measured.replies[0].token_ids is None
    assert measured.seconds < 6 * 0.2


def test_what_cannot_be_measured_is_said_in_one_sentence():
    with pytest.raises(ModelError, match="begins with http://"):
        ServedModel("localhost:8000")
    with pytest.raises(ModelError, match="is the server running"), ServedModel("http://127.0.0.1:9") as server:
        measure_served(server, [[1]], concurrency=1, max_tokens=2)
    with fake_vllm(status=500) as (url, _), ServedModel(url) as server, pytest.raises(ModelError, match="HTTP 500"):
        measure_served(server, [[1]], concurrency=1, max_tokens=2)


def test_counters_add_up_over_engines():
    lines = [
        f'vllm:spec_decode_num_{name}_total{{engine="{engine}"{more}}} {value}'
        for engine in (0, 1)
        for name, more, value in (
            ("drafts", "", 4),
            ("draft_tokens", "", 1.2e1),
            ("accepted_tokens", "", 5),
            ("accepted_tokens_per_pos", ',position="1"', 2),
            ("accepted_tokens_per_pos", ',position="0"', 3),
        )
    ]
    counted = read_counters("\n".join(lines))
    assert (counted.drafts, counted.drafted, counted.accepted, counted.accepted_at) == (8, 24, 10, [6, 4])
    assert read_counters("vllm:num_requests_running 3\n") is None


def cost(lengths, split, per_batch):
    return sum(len(rows) * max(lengths[row] for row in rows) + per_batch for rows in split)


@given(st.lists(st.integers(1, 60), max_size=9), st.integers(1, 5), st.integers(0, 80))
def test_no_other_split_costs_less(lengths, most, per_batch):
    found = batches(lengths, most, per_batch)
    assert sorted(row for rows in found for row in rows) == list(range(len(lengths)))
    assert all(0 < len(rows) <= most for rows in found)
    in_order = [lengths[row] for rows in found for row in rows]
    assert in_order == sorted(lengths, reverse=True)
    order = sorted(range(len(lengths)), key=lambda row: lengths[row], reverse=True)
    for cuts in product([False, True], repeat=max(0, len(lengths) - 1)):
        begins = [0, *(place for place, cut in enumerate(cuts, 1) if cut), len(lengths)]
        split = [order[begin:end] for begin, end in pairwise(begins) if begin < end]
        if all(len(rows) <= most for rows in split):
            assert cost(lengths, found, per_batch) <= cost(lengths, split, per_batch)


@pytest.mark.parametrize(("per_batch", "sizes"), [(0, [2, 2]), (2_000, [4]), (1_500, [2, 2])])
def test_a_batch_is_split_where_its_padding_costs_more_than_its_rounds(per_batch, sizes):
    found = batches([900, 40, 40, 900], 64, per_batch)  # one batch pads 2 * 860 tokens
    assert [len(rows) for rows in found] == sizes


def test_short_prompts_stay_together():
    assert len(batches([30 + number % 9 for number in range(64)], 64, cost_of_rounds("cpu", 48))) == 1
    assert len(batches([3_000] * 8 + [60] * 32, 64, cost_of_rounds("cpu", 48))) == 2
    assert batches([], 4, 10) == []


class NoisyDrafter:
    """Draws drafts from a fixed distribution over some of the vocabulary: wrong often, exact in its probabilities."""

    capture = ()

    def __init__(self, vocab: int, target_ids: list[int], seed: int = 0):
        generator = torch.Generator().manual_seed(seed)
        self.ids = torch.tensor(target_ids)
        self.table = torch.randn(vocab, len(target_ids), generator=generator).softmax(-1)

    def begin(self, prompts, first, captured=None):
        self.last = first

    def propose(self, count, temperature, uniforms):
        from model_ops.decoding.sampling import sample

        indices, probabilities, last = [], [], self.last
        for k in range(count):
            q = self.table[last]
            indices.append(sample(q, uniforms[:, k]))
            probabilities.append(q)
            last = self.ids[indices[-1]]
        index = torch.stack(indices, 1)
        return Proposal(
            self.ids[index], torch.ones_like(index, dtype=torch.bool), torch.stack(probabilities, 1), index, self.ids
        )

    def advance(self, emitted, counts, captured=None):
        self.last = emitted.gather(1, counts[:, None] - 1).squeeze(1)

    def keep(self, rows):
        self.last = self.last[rows]


def prompts_of(count, longest=14, vocab=96, seed=0):
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, longest, (count,), generator=generator).tolist()
    return [torch.randint(3, vocab, (length,), generator=generator).tolist() for length in lengths]


def greedy_truth(model, prompt, limit, eos):
    tokens = list(prompt)
    for _ in range(limit):
        with torch.no_grad():
            token = int(model(torch.tensor([tokens])).logits[0, -1].argmax())
        tokens.append(token)
        if token == eos:
            break
    return tokens[len(prompt) :]


@pytest.mark.parametrize("drafter", [None, "ngram", "noisy"])
def test_greedy_text_is_the_targets_own(drafter):
    model = tiny_model(layers=2, seed=4)
    prompts = prompts_of(9)
    eos = greedy_truth(model, prompts[0], 6, None)[5]
    truth = [greedy_truth(model, prompt, 20, eos) for prompt in prompts]
    made = {"ngram": lambda: LookupDrafter(NgramIndex), "noisy": lambda: NoisyDrafter(96, list(range(5, 60)))}.get(
        drafter, lambda: None
    )()
    answers = decode(
        IncrementalModel(model),
        prompts,
        [str(i) for i in range(9)],
        eos_ids={eos},
        temperature=0,
        max_new_tokens=20,
        drafter=made,
        num_speculative_tokens=3,
        batch_size=4,
    )
    assert [answer.tokens for answer in answers] == truth
    assert [answer.finish_reason for answer in answers] == ["stop" if row[-1] == eos else "length" for row in truth]
    assert any(len(row) < 20 for row in truth) and any(len(row) == 20 for row in truth)
    if drafter is not None:
        assert sum(answer.accepted for answer in answers) > 0
        assert all(answer.forwards <= len(answer.tokens) for answer in answers)


def test_a_rows_answer_depends_on_its_id_and_seed_alone():
    runner = IncrementalModel(tiny_model(layers=2))
    prompts, ids = prompts_of(7), list("abcdefg")
    options = {"eos_ids": {2}, "temperature": 1.0, "max_new_tokens": 12}
    first = decode(runner, prompts, ids, batch_size=3, seed=1, **options)
    second = decode(runner, prompts[::-1], ids[::-1], batch_size=7, seed=1, **options)[::-1]
    other = decode(runner, prompts, ids, batch_size=3, seed=2, **options)
    assert [answer.tokens for answer in first] == [answer.tokens for answer in second]
    assert [answer.tokens for answer in first] != [answer.tokens for answer in other]


def test_sampled_text_with_a_drafter_is_distributed_as_without():
    answers = sampled_text_is_distributed_as_the_target(six_token_target(), NoisyDrafter(6, [0, 2, 3, 5]))
    accepted, forwards = sum(a.accepted for a in answers), sum(a.forwards for a in answers)
    assert 0.1 < accepted / forwards < 1.9


def test_prompts_that_cannot_be_answered_are_refused():
    runner = IncrementalModel(tiny_model(layers=2, max_position_embeddings=16))
    with pytest.raises(ModelError, match="row long has 16 tokens"):
        decode(runner, [[3] * 16], ["long"], eos_ids={2}, temperature=0, max_new_tokens=4)
    broken = tiny_model(layers=2)
    with torch.no_grad():
        broken.model.layers[0].mlp.down_proj.weight[0, 0] = float("nan")
    for temperature in (0, 1.0):
        with pytest.raises(ModelError, match="its weights hold values that are not finite"):
            decode(IncrementalModel(broken), [[3, 4]], ["a"], eos_ids={2}, temperature=temperature, max_new_tokens=4)
    (answer,) = decode(runner, [[3] * 13], ["fits"], eos_ids=set(), temperature=0, max_new_tokens=4)
    assert len(answer.tokens) == 3


@pytest.mark.parametrize("drafter", [False, True])
@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_each_token_has_its_log_probability_at_the_temperature(drafter, temperature):
    model = tiny_model(layers=2, seed=4)
    prompts = prompts_of(5)
    answers = decode(
        IncrementalModel(model),
        prompts,
        [str(i) for i in range(5)],
        eos_ids={7, 11, 30},
        temperature=temperature,
        max_new_tokens=17,
        drafter=NoisyDrafter(96, list(range(5, 60))) if drafter else None,
        num_speculative_tokens=3,
        truncation=Truncation(top_p=0.9),
        log_probs=True,
    )
    for prompt, answer in zip(prompts, answers, strict=True):
        with torch.no_grad():
            logits = model(torch.tensor([[*prompt, *answer.tokens]])).logits[0, len(prompt) - 1 : -1]
        of_all = (logits / (temperature or 1.0)).log_softmax(-1)
        expected = of_all[torch.arange(len(answer.tokens)), torch.tensor(answer.tokens)]
        torch.testing.assert_close(torch.tensor(answer.log_probs), expected, rtol=0, atol=2e-5)


def test_nobody_pays_for_log_probabilities_that_nobody_asked_for(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "logsumexp", lambda *_, **__: pytest.fail("computed"))
    said = decode(IncrementalModel(tiny_model()), prompts_of(2), ["0", "1"], eos_ids=(), temperature=1.0, max_new_tokens=3)
    assert [answer.log_probs for answer in said] == [[], []]
