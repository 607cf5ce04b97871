"""DFlash: blocks in training against a plain dense model and against the decoder, its anchors, exactness, files and back."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from exactness import greedy_text_is_the_targets, sampled_text_is_distributed_as_the_target, six_token_target
from safetensors.torch import load_file
from tiny_drafters import tiny_dflash
from tiny_models import tiny_model

from model_ops.decoding.decode_loop import decode
from model_ops.decoding.incremental import IncrementalModel, rotate
from model_ops.jobs import ModelError
from model_ops.speculators.backbone import draft_attention
from model_ops.speculators.continue_training import check_fit, take_over
from model_ops.speculators.decoder_config import captured_boundaries
from model_ops.speculators.dflash.network import default_mask_token
from model_ops.speculators.draft_model import DocumentWindows
from model_ops.speculators.factory import load_draft_model, new_draft_model
from model_ops.speculators.losses.chain_loss import Teacher
from model_ops.speculators.losses.training_loss import SpeculatorLoss, drafts_of, measure_alpha
from model_ops.speculators.registry import speculator_settings
from model_ops.speculators.states.hidden_states import AnswerRow, OnlineStates
from model_ops.speculators.states.speculator_batches import SpeculatorPlan, chosen_anchors, documents_of, make_batch
from tests.model_ops.speculators.defined_losses import acceptance, speculator_loss


def normed(x, weight):
    return weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


def block_by_definition(model, embedding, head, text, states, j, drafts):
    """Logits [drafts, vocab] of one block from the paper's description: one row of text, one softmax over context and block."""
    weights, config = model.state_dict(), model.config
    heads, kv_heads, width = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    context = normed(states[: j + 1] @ weights["fc.weight"].T, weights["hidden_norm.weight"])
    x = embedding[torch.tensor([text[j + 1], *[config.mask_token_id] * drafts])]
    places = torch.arange(j + 2 + drafts)
    cos, sin = (table[0][:, None] for table in model.rotary(x, places[None]))
    for number in range(config.num_layers):

        def of(name, source, number=number):
            return source @ weights[f"layers.{number}.{name}.weight"].T

        def vector(name, number=number):
            return weights[f"layers.{number}.{name}.weight"]

        entered = normed(x, vector("input_layernorm"))
        both = torch.cat((context, entered))
        query = rotate(
            normed(of("self_attn.q_proj", entered).view(-1, heads, width), vector("self_attn.q_norm")),
            cos[j + 1 :],
            sin[j + 1 :],
        )
        keys = rotate(normed(of("self_attn.k_proj", both).view(-1, kv_heads, width), vector("self_attn.k_norm")), cos, sin)
        values = of("self_attn.v_proj", both).view(-1, kv_heads, width)
        keys, values = (stream.repeat_interleave(heads // kv_heads, dim=1) for stream in (keys, values))
        scores = torch.einsum("qhd,khd->hqk", query, keys) / width**0.5
        x = x + of("self_attn.o_proj", torch.einsum("hqk,khd->qhd", scores.softmax(-1), values).flatten(1))
        entered = normed(x, vector("post_attention_layernorm"))
        x = x + of("mlp.down_proj", F.silu(of("mlp.gate_proj", entered)) * of("mlp.up_proj", entered))
    return normed(x[1:], weights["norm.weight"]) @ head.T


@pytest.fixture(scope="module")
def material():
    target = tiny_model(layers=8)
    runner = IncrementalModel(target)
    model = tiny_dflash(runner)
    rows = [
        AnswerRow(str(n), torch.randint(3, 96, (prompt + answer,), generator=torch.Generator().manual_seed(n)).tolist(), prompt)
        for n, (prompt, answer) in enumerate([(5, 9), (1, 4), (2, 14)])
    ]
    return target, runner, model, rows, OnlineStates(runner, rows, model.capture)


def documents_at(batch, anchors):
    """The batch's documents, with blocks at these entries of each window."""
    if anchors is None:
        return documents_of(batch)
    marked = torch.zeros(len(anchors), int(batch.windows.max()), dtype=torch.bool)
    for place, entries in enumerate(anchors):
        marked[place, entries] = True
    return replace(documents_of(batch), anchors=marked)


def logits_of(model, hidden, step):
    rows, head = model.scored(hidden, step)
    return rows @ head.T


@pytest.mark.parametrize("anchors", [None, [[0, 3, 4, 8], [2], [1, 5, 13]]])
@pytest.mark.parametrize("explicit_up_to", [512, 0])
def test_training_computes_the_dense_model(material, anchors, explicit_up_to, monkeypatch):
    """At every anchor, chosen or all, and by explicit products or the fused kernel. States are stored in bfloat16."""
    monkeypatch.setattr(draft_attention, "EXPLICIT_UP_TO", explicit_up_to)
    target, runner, model, rows, source = material
    batch = make_batch(rows, source, [0, 1, 2])
    outputs = model.unroll(documents_at(batch, anchors), 3)
    assert len(outputs) == 3 and outputs[0].shape == (3, 14, 32)
    for place, row in enumerate(rows):
        chosen = range(row.window) if anchors is None else anchors[place]
        for entry in range(14):
            if entry not in chosen:
                assert all(not output[place, entry].any() for output in outputs)
                continue
            expected = block_by_definition(
                model, runner.embedding, target.lm_head.weight, row.ids, batch.captured[place].float(), row.start + entry, 3
            )
            for step in range(3):
                torch.testing.assert_close(
                    logits_of(model, outputs[step][place, entry], step), expected[step], atol=2e-4, rtol=1e-4
                )


def test_gradients_are_those_of_the_dense_model(material):
    target, runner, model, rows, source = material
    batch = make_batch(rows, source, [0, 2])
    model = tiny_dflash(runner).requires_grad_(True)
    drawn = torch.randn(5, 3, 96, generator=torch.Generator().manual_seed(7))
    outputs = model.unroll(documents_at(batch, [[0, 3, 8], [5, 13]]), 3)
    where = [(0, 0), (0, 3), (0, 8), (1, 5), (1, 13)]
    found = sum(
        (logits_of(model, outputs[step][place][None], step) * drawn[number, step]).sum()
        for number, place in enumerate(where)
        for step in range(3)
    )
    parameters = dict(model.named_parameters())
    ours = torch.autograd.grad(found, parameters.values())
    state = model.state_dict
    model.state_dict = lambda: parameters  # the dense model reads its weights there
    expected = sum(
        (
            block_by_definition(
                model,
                runner.embedding,
                target.lm_head.weight,
                rows[[0, 2][row]].ids,
                batch.captured[row].float(),
                rows[[0, 2][row]].start + entry,
                3,
            )
            * drawn[number]
        ).sum()
        for number, (row, entry) in enumerate(where)
    )
    theirs = torch.autograd.grad(expected, parameters.values())
    model.state_dict = state
    for name, one, other in zip(parameters, ours, theirs, strict=True):
        torch.testing.assert_close(one, other, atol=2e-4 * float(other.abs().max() + 1), rtol=1e-3, msg=name)


def test_drafting_computes_what_training_does(material):
    _, runner, model, rows, _ = material
    text = torch.tensor([rows[0].ids, rows[2].ids[:14]])
    _, captured = runner.forward(text, runner.new_cache(2), model.capture)
    outputs = model.unroll(DocumentWindows(text, captured, torch.tensor([0, 0]), 12), 3)
    drafter = model.drafter()
    drafter.begin([text[0, :5].tolist(), text[1, :3].tolist()], torch.stack((text[0, 5], text[1, 3])), captured[:, :5])
    stands = [4, 2]
    for counts in ([3, 1], [2, 4]):  # what each row accepts before the next block, its last token included
        proposal = drafter.propose(3, 0.0, torch.zeros(2, 3))
        for row, j in enumerate(stands):
            expected = torch.stack([logits_of(model, outputs[step][row, j], step) for step in range(3)]).argmax(-1)
            assert proposal.tokens[row].tolist() == expected.tolist()
        emitted = torch.stack([text[row, j + 2 : j + 6] for row, j in enumerate(stands)])
        drafter.advance(
            emitted, torch.tensor(counts), torch.stack([captured[row, j + 1 : j + 5] for row, j in enumerate(stands)])
        )
        stands = [j + count for j, count in zip(stands, counts, strict=True)]
    drafter.keep(torch.tensor([1]))
    assert (
        drafter.propose(3, 0.0, torch.zeros(1, 3)).tokens[0].tolist()
        == torch.stack([logits_of(model, outputs[step][1, stands[1]], step) for step in range(3)]).argmax(-1).tolist()
    )


def test_greedy_text_is_the_targets_own():
    target = tiny_model(layers=4, seed=3)
    answers = greedy_text_is_the_targets(target, tiny_dflash(IncrementalModel(target)).drafter())
    assert sum(answer.drafted for answer in answers) == 3 * sum(answer.forwards for answer in answers) > 0


@pytest.mark.parametrize("greedy", [False, True])
def test_sampled_text_is_distributed_as_the_target(greedy):
    target = six_token_target(layers=4)
    drafter = tiny_dflash(IncrementalModel(target), drafts=2).drafter(greedy)
    answers = sampled_text_is_distributed_as_the_target(target, drafter)
    accepted, drafted = sum(a.accepted for a in answers), sum(a.drafted for a in answers)
    assert 0 < accepted < drafted


@pytest.mark.parametrize("loss", ["kl", "lk_lambda", "lk_alpha", "tv", "cross_entropy"])
def test_the_loss_is_the_weighted_sum_over_the_anchors_blocks(material, loss):
    target, runner, model, rows, source = material
    model = tiny_dflash(runner).requires_grad_(True)
    settings = speculator_settings(architecture="dflash", loss=loss, gamma=2.0, anchors=4, lambda_of="position").resolved()
    batch, teacher = make_batch(rows, source, [0, 1, 2], (5, 6, 7)), Teacher(target.lm_head.weight, model.target_ids)
    found = SpeculatorLoss(teacher, settings)(model, batch)
    p = (batch.last.float() @ teacher.head.T).softmax(-1)
    labels = torch.cat([torch.tensor(row.ids[row.prompt_tokens :] if row.prompt_tokens > 1 else row.ids[2:]) for row in rows])
    assert len(labels) == len(p) == found.terms["loss"].count == 26
    chosen = [entries.nonzero().flatten().tolist() for entries in chosen_anchors(batch.windows, batch.order, 4)]
    assert [len(entries) for entries in chosen] == [4, 3, 4]
    total, firsts = 0, [0, 9, 12]
    outputs = model.unroll(documents_at(batch, chosen), 3)
    for step, weight in enumerate([1.0, 0.60653066, 0.36787944]):  # exp(-k / 2)
        for place, row in enumerate(rows):
            losses = []
            for entry in chosen[place]:
                if entry + step < row.window:
                    at = firsts[place] + entry + step
                    logits = logits_of(model, outputs[step][place, entry, None], step)
                    losses.append(speculator_loss(loss, logits, p[at, None], labels[at, None], 3.0).sum())
            # what was drafted at some positions of an answer stands for all of it that have a teacher
            total = total + weight * sum(losses) / len(losses) * (row.window - step)
    torch.testing.assert_close(found.terms["loss"].sum, total)
    weights = list(model.parameters())
    for one, other in zip(
        torch.autograd.grad(found.terms["loss"].sum, weights), torch.autograd.grad(total, weights), strict=True
    ):
        torch.testing.assert_close(one, other, atol=2e-4, rtol=2e-3)


def test_an_answer_weighs_by_its_tokens_whatever_shares_its_micro_batch(material):
    """Two anchors each of answers of 9, 3 and 14 tokens: together as much as one by one, at the same anchors."""
    target, _, model, rows, source = material
    settings = speculator_settings(architecture="dflash", anchors=2).resolved()
    loss = SpeculatorLoss(Teacher(target.lm_head.weight, model.target_ids), settings)
    together = make_batch(rows, source, [0, 1, 2], (5, 6, 7))
    orders = together.order.split(together.windows.tolist())
    alone = [make_batch(rows, source, [place]) for place in range(3)]
    alone = [replace(batch, order=order) for batch, order in zip(alone, orders, strict=True)]
    torch.testing.assert_close(
        loss(model, together).terms["loss"].sum, sum(loss(model, batch).terms["loss"].sum for batch in alone)
    )


def test_anchors_are_chosen_anew_each_step_and_again_the_same(material):
    _, _, _, rows, source = material
    settings = speculator_settings(architecture="dflash", steps=6, tokens_per_step=64).resolved()
    plans, seen = [SpeculatorPlan(rows, source, settings) for _ in range(2)], set()
    for step in range(6):
        for one, other in zip(*(plan.step(step) for plan in plans), strict=True):
            windows = one.windows
            marked, again = (chosen_anchors(windows, batch.order, 5) for batch in (one, other))
            assert one.row_ids == other.row_ids and torch.equal(marked, again)
            assert marked.sum(1).tolist() == windows.clamp(max=5).tolist()
            assert not (marked & (torch.arange(marked.shape[1]) >= windows[:, None])).any()
            seen.add((tuple(one.row_ids), tuple(marked.nonzero().flatten().tolist())))
    assert len(seen) > 3


def test_what_is_told_of_validation_is_the_mean_over_all_positions(material):
    target, _, model, rows, source = material
    teacher = Teacher(target.lm_head.weight, model.target_ids)
    told = measure_alpha(model, teacher, rows, source, 2)
    alphas = [[], []]
    for member in range(3):
        batch = make_batch(rows, source, [member])
        p = (batch.last.float() @ teacher.head.T).softmax(-1)
        for step, draft in enumerate(drafts_of(model, batch, 2)):
            alphas[step] += acceptance(draft.states @ draft.head.T, p[draft.rows]).tolist()
    assert told["validation_alpha_0"] == pytest.approx(sum(alphas[0]) / len(alphas[0]), rel=1e-3)
    assert told["validation_alpha_1"] == pytest.approx(sum(alphas[1]) / len(alphas[1]), rel=1e-3)


def test_files_give_back_the_same_drafter_in_both_layouts(tmp_path):
    runner = IncrementalModel(tiny_model(layers=8, dtype=torch.float32))
    model = tiny_dflash(runner, block_size=6)
    model.save(tmp_path, 3)
    config, twin = (json.loads((place / "config.json").read_text()) for place in (tmp_path, tmp_path / "speculators"))
    assert config["architectures"] == ["DFlashDraftModel"] and config["block_size"] == 6 and config["num_target_layers"] == 8
    assert config["dflash_config"] == {"mask_token_id": 95, "target_layer_ids": [1, 3, 5]} and model.capture == (2, 4, 6)
    assert twin["aux_hidden_state_layer_ids"] == [2, 4, 6] and twin["mask_token_id"] == 95 and twin["block_size"] == 6
    assert twin["speculators_config"]["proposal_methods"][0]["speculative_tokens"] == 3
    stored, other = (load_file(place / "model.safetensors") for place in (tmp_path, tmp_path / "speculators"))
    assert stored.keys() == other.keys() and not any("embed" in name or "lm_head" in name for name in stored)
    again = load_draft_model(tmp_path)
    assert again.config == model.config
    with pytest.raises(ModelError, match="attach"):
        again.drafter()
    states = torch.randn(4, 3 * 32)
    model = model.bfloat16().float()
    assert torch.equal(again.context(states), model.context(states))
    assert torch.equal(again.attach(runner).logits(states[:, :32]), model.attach(runner).logits(states[:, :32]))
    with pytest.raises(ModelError, match="give its own target"):
        again.attach(IncrementalModel(tiny_model(layers=8, vocab_size=64)))


@pytest.mark.parametrize("chosen", [None, 8])
def test_what_training_keeps_grows_as_the_document_does(chosen):
    """Bytes kept for the backward pass, with blocks at every position and at some: linear in length."""
    runner = IncrementalModel(tiny_model(layers=4, max_position_embeddings=4_096))
    model = tiny_dflash(runner).requires_grad_(True)

    def kept(tokens):
        ids = torch.randint(3, 96, (1, tokens), generator=torch.Generator().manual_seed(0))
        anchors = None
        if chosen is not None:
            anchors = torch.zeros(1, tokens - 2, dtype=torch.bool)
            anchors[:, ::chosen] = True
        total = 0

        def count(tensor):
            nonlocal total
            total += tensor.numel() * tensor.element_size()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
            model.unroll(
                DocumentWindows(ids, torch.zeros(1, tokens, 3 * 32), torch.tensor([0]), tokens - 2, anchors=anchors), 3
            )
        return total

    short, middle, long = kept(256), kept(512), kept(1_024)
    assert (long - middle) / (middle - short) == pytest.approx(2, rel=0.02)


def test_going_on_from_a_previous_drafter_takes_its_weights_and_refuses_other_inputs():
    runner = IncrementalModel(tiny_model(layers=8))
    previous, model = tiny_dflash(runner), tiny_dflash(runner, drafts=5, seed=1)
    assert check_fit(model, previous) == {"head_rows_taken_over": 96, "head_rows_new": 0}
    take_over(model, previous)
    assert all(torch.equal(tensor, previous.state_dict()[name]) for name, tensor in model.state_dict().items())
    assert model.config.block_size == 6
    for changes, sentence in (
        ({"mask_token_id": 7}, "mask_token_id is 95"),
        ({"num_layers": 3}, "layers.2"),
        ({"captured_layers": 2}, "layer_ids is"),
    ):
        with pytest.raises(ModelError, match=sentence):
            check_fit(tiny_dflash(runner, **changes), previous)


def test_boundaries_are_spread_over_the_layers():
    assert captured_boundaries(36, 5) == (2, 10, 18, 26, 34)  # z-lab/Qwen3-8B-DFlash-b16: 1, 9, 17, 25, 33
    assert captured_boundaries(10, None) == (2, 3, 5, 7, 8) and captured_boundaries(8, 1) == (5,)
    for layers in range(2, 40):
        for count in range(1, min(layers, 9)):
            found = captured_boundaries(layers, count)
            assert len(found) == count and list(found) == sorted(set(found)) and found[0] >= 1 and found[-1] < layers
    assert captured_boundaries(3, None) == (1, 2)
    for layers, count in ((4, 4), (1, None), (0, None)):
        with pytest.raises(ModelError, match="captured_layers"):
            captured_boundaries(layers, count)


def test_the_mask_token_is_one_that_no_text_holds():
    def chosen(**changes):
        target = tiny_model(layers=2, tied=False, **changes)
        target.model.embed_tokens.weight[:6] = target.model.embed_tokens.weight[6]  # transformers begins padding at zero
        target.model.embed_tokens.weight[90:] = 0
        return default_mask_token(IncrementalModel(target))

    assert chosen(pad_token_id=5) == 5
    assert chosen(pad_token_id=2) == chosen(pad_token_id=None) == chosen(pad_token_id=91) == 89
    runner = IncrementalModel(tiny_model(layers=4))
    settings = speculator_settings(architecture="dflash", mask_token_id=96).resolved()
    with pytest.raises(ModelError, match="mask_token_id is 96, outside"):
        new_draft_model(settings, runner, torch.arange(96))


def test_more_drafts_than_a_block_holds_are_refused():
    runner = IncrementalModel(tiny_model(layers=4))
    model = tiny_dflash(runner)
    with pytest.raises(ModelError, match="blocks of 3 drafts"):
        decode(
            runner,
            [[3, 4]],
            ["r"],
            eos_ids=set(),
            temperature=0,
            max_new_tokens=4,
            drafter=model.drafter(),
            num_speculative_tokens=4,
        )


REFUSED = {
    "block_size 3 holds 2 drafts": {"block_size": 3}, "set gamma": {"step_decay": 0.9}, "ttt_steps is 5": {"ttt_steps": 5},
    "whole vocabulary": {"draft_vocab_size": 64}, "only mtp has it": {"mtp_layer": "base"},
    "gamma is set, but architecture is eagle3": {"architecture": "eagle3", "gamma": 4.0},
}  # fmt: skip


@pytest.mark.parametrize("sentence", REFUSED)
def test_settings_that_contradict_each_other_are_refused(sentence):
    with pytest.raises(ValueError, match=sentence):
        speculator_settings(**{"architecture": "dflash", **REFUSED[sentence]})


def test_open_settings_are_filled_by_block_and_preset():
    filled = speculator_settings(architecture="dflash", num_speculative_tokens=7, preset="quick").resolved()
    assert (filled.block_size, filled.ttt_steps, filled.num_layers, filled.anchors, filled.gamma) == (8, 7, 1, 64, 4.0)
    assert filled.weights_of_steps(3) == pytest.approx([1, 0.7788008, 0.6065307])
    wider = speculator_settings(architecture="dflash", block_size=12, anchors=9).resolved()
    assert (wider.ttt_steps, wider.num_layers, wider.anchors) == (11, 3, 9)
    assert speculator_settings(**wider.model_dump()) == wider
    assert speculator_settings().resolved().positions_per_answer is None
