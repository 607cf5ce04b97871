"""Packed rows: the same logits and gradients as each document alone, and no look at a neighbour."""

import itertools

import pytest
import torch
from architectures import build
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoConfig, AutoModelForCausalLM, Qwen3Config, Qwen3ForCausalLM

import model_ops.models.attention as attention
import model_ops.models.experts as experts
from model_ops.jobs import ModelError
from model_ops.models import block_attention as module
from model_ops.models import load_model
from model_ops.models.block_attention import block_attention

MIXTURES = ("qwen3_moe", "gpt_oss")
"""Experts as [out, in] without bias, and as [in, out] with bias and clamped gates."""
EXPERTS = 7


def outputs(model, ids):
    logits = model(input_ids=ids, use_cache=False).logits
    logits.square().sum().backward()
    return [logits.detach(), *(parameter.grad for parameter in model.parameters())]


@pytest.mark.parametrize("name", MIXTURES)
@pytest.mark.parametrize("width", [24, 18])
def test_outputs_and_gradients_are_those_of_transformers_own_loop(name, width):
    sizes = {"moe_intermediate_size": width} if name == "qwen3_moe" else {"intermediate_size": width}
    ours, loop = (build(name, **sizes) for _ in range(2))
    loop.set_experts_implementation("eager")
    ids = torch.randint(61, (2, 15), generator=torch.Generator().manual_seed(0))
    for one, other in zip(outputs(ours, ids), outputs(loop, ids), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4 * float(other.abs().max()))


@pytest.mark.parametrize("name", MIXTURES)
def test_products_under_autocast_are_bfloat16_and_gradients_float32(name, monkeypatch):
    model, seen = build(name), []
    ids = torch.randint(61, (1, 30), generator=torch.Generator().manual_seed(0))
    exact = outputs(build(name), ids)
    product = experts.grouped_product
    monkeypatch.setattr(
        experts,
        "grouped_product",
        lambda rows, weight, ends: (seen.append((rows.dtype, weight.dtype)), product(rows, weight, ends))[1],
    )
    with torch.autocast("cpu", torch.bfloat16):
        rounded = outputs(model, ids)
    assert set(seen) == {(torch.bfloat16, torch.bfloat16)}
    assert all(gradient.dtype == torch.float32 for gradient in rounded[1:])
    error = (rounded[0] - exact[0]).norm() / exact[0].norm()
    assert 0 < error < 0.2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_padded_products_are_those_of_a_loop(dtype):
    """What CUDA computes for widths that its grouped product refuses."""
    generator = torch.Generator().manual_seed(0)
    rows, weight = (torch.randn(*shape, generator=generator).to(dtype).requires_grad_() for shape in ((11, 18), (4, 18, 27)))
    ends = torch.tensor([3, 3, 10, 11], dtype=torch.int32)
    made = [product(rows, weight, ends) for product in (experts.grouped_product, experts.grouped_product_padded)]
    upstream = torch.randn(made[0].shape, generator=generator).to(dtype)
    found = [[one, *torch.autograd.grad(one, (rows, weight), upstream)] for one in made]
    for loop, padded in zip(*found, strict=True):
        torch.testing.assert_close(padded, loop, rtol=1e-4 if dtype == torch.float32 else 2e-2, atol=1e-4)


class Casts(TorchDispatchMode):
    """Counts copies of stacked weights to another dtype."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, operator, types, given=(), named=None):
        if operator is torch.ops.aten._to_copy.default and given[0].ndim == 3 and given[0].dtype != named["dtype"]:
            self.count += given[0].shape[0] == EXPERTS
        return operator(*given, **(named or {}))


@pytest.mark.parametrize(("dtype", "casts"), [(torch.bfloat16, 0), (torch.float32, 2)])
def test_frozen_experts_are_not_cast_and_trained_ones_once_a_layer_as_autocast_does(dtype, casts):
    """Of an adapter's run, experts are bfloat16 as loaded; float32 masters are cast once in each micro-batch's forward."""
    model = build("qwen3_moe", num_hidden_layers=1, num_experts=EXPERTS)
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    ids = torch.randint(61, (1, 30), generator=torch.Generator().manual_seed(0))
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad(), Casts() as seen:
        model(input_ids=ids, use_cache=False)
    assert seen.count == casts, "gate with up, and down"


@pytest.mark.gpu
@pytest.mark.parametrize("name", MIXTURES)
@pytest.mark.parametrize("width", [24, 18])
def test_on_cuda_a_mixture_gives_what_a_cpu_gives(name, width):
    sizes = {"moe_intermediate_size": width} if name == "qwen3_moe" else {"intermediate_size": width}
    model, ids = build(name, **sizes), torch.randint(61, (2, 15), generator=torch.Generator().manual_seed(0))
    wanted = outputs(model, ids)
    model.zero_grad()
    with torch.autocast("cuda", torch.bfloat16):
        found = outputs(model.cuda(), ids.cuda())
    for one, other in zip(found, wanted, strict=True):
        assert (one.cpu() - other).norm() < 0.2 * other.norm() + 1e-6


SMALL = {
    "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 256, "bos_token_id": None, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
APART = {
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256},
    "olmo": {},
    "qwen2_moe": {"moe_intermediate_size": 24, "shared_expert_intermediate_size": 24, "num_experts": 4},
}
"""Architectures outside the table in which attention alone keeps documents apart."""
STATES = {
    "stablelm": {},
    "nemotron": {},
    "falcon_h1": {"mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_d_state": 8, "mamba_chunk_size": 16},
}
"""Architectures outside the table with a state, whose documents are computed as rows of their own."""
REFUSED = {
    "mamba": {"state_size": 8},
    "bloom": {"n_layer": 2, "n_head": 4},
    "gptj": {"n_embd": 32, "n_layer": 2, "n_head": 4, "rotary_dim": 8, "n_positions": 256},
}


def written(name, own, folder):
    torch.manual_seed(3)
    AutoModelForCausalLM.from_config(AutoConfig.for_model(name, **{**SMALL, **own})).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("name", REFUSED)
def test_an_architecture_whose_documents_see_each_other_is_refused(name, tmp_path):
    folder = written(name, REFUSED[name], tmp_path)
    with pytest.raises(ModelError, match=r"influence each other|does not support packed documents") as refusal:
        load_model(folder, attention="packed")
    assert "trained are llama, " in str(refusal.value) and "\n" not in str(refusal.value)


@pytest.mark.parametrize("name", [*APART, *STATES])
def test_an_architecture_that_is_let_through_gives_each_documents_own_logits(name, tmp_path):
    folder = written(name, {**APART, **STATES}[name], tmp_path)
    packed = load_model(folder, attention="packed")
    plain = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32).eval()
    lengths, ids = [9, 30, 21], torch.randint(3, 61, (60,), generator=torch.Generator().manual_seed(1))
    positions = torch.cat([torch.arange(length) for length in lengths])
    with torch.no_grad():
        ours = packed(input_ids=ids[None], position_ids=positions[None], use_cache=False, document_lengths=lengths).logits[0]
        theirs = torch.cat([plain(input_ids=part[None], use_cache=False).logits[0] for part in ids.split(lengths)])
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_on_several_processes_an_architecture_that_cannot_be_tried_is_refused(tmp_path):
    with pytest.raises(ModelError, match=r"phi3 cannot be trained on several processes, only llama, .*leave mesh out"):
        load_model(written("phi3", {}, tmp_path), attention="packed", device="meta")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_experts_of_a_width_that_grouped_products_refuse_are_run_all_the_same(dtype, tmp_path):
    own = {"moe_intermediate_size": 18, "num_experts": 4, "num_experts_per_tok": 2, "head_dim": 8}
    model = load_model(written("qwen3_moe", own, tmp_path), dtype, attention="packed")
    logits = model(input_ids=torch.arange(20)[None], use_cache=False).logits
    assert bool(torch.isfinite(logits).all()) and float(logits.detach().std()) > 0


def plain(query, key, value, scaling, window, softcap, sinks):
    shared = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(shared, 1), value.repeat_interleave(shared, 1)
    scores = query @ key.transpose(2, 3) * scaling
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    place = torch.arange(query.shape[2])
    seen = place[None] <= place[:, None]
    if window is not None:
        seen &= place[None] > place[:, None] - window
    scores = scores.masked_fill(~seen, float("-inf"))
    if sinks is not None:
        scores = torch.cat([scores, sinks.view(1, -1, 1, 1).expand(*scores.shape[:3], 1)], -1)
    return scores.softmax(-1)[..., : query.shape[2]] @ value


def streams(longest, dtype=torch.float64):
    torch.manual_seed(longest)
    shapes = [(2, 4, longest, 8), (2, 2, longest, 8), (2, 2, longest, 8), (4,)]
    return [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]


@pytest.mark.parametrize(
    ("longest", "window", "softcap", "sinks"),
    list(itertools.product([1, 37, 64, 201], [None, 1, 16, 64], [None, 2.0], [False, True])),
)
def test_outputs_and_gradients_equal_the_plain_formula(monkeypatch, longest, window, softcap, sinks):
    monkeypatch.setattr(module, "SMALLEST_BLOCK", 13)
    monkeypatch.setattr(module, "BLOCK_SCORES", {"cpu": 1})
    *given, sink = streams(longest)
    wanted_from = [*given, *([sink] if sinks else [])]
    ours = block_attention(*given, 0.4, window, softcap, sink if sinks else None)
    theirs = plain(*given, 0.4, window, softcap, sink if sinks else None)
    upstream = torch.randn_like(theirs)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    for one, other in zip(
        torch.autograd.grad(ours, wanted_from, upstream), torch.autograd.grad(theirs, wanted_from, upstream), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_the_block_does_not_change_the_result_beyond_rounding(monkeypatch):
    *given, sink = streams(150, torch.float32)
    whole = block_attention(*given, 0.3, 40, None, sink)
    monkeypatch.setattr(module, "SMALLEST_BLOCK", 7)
    monkeypatch.setattr(module, "BLOCK_SCORES", {"cpu": 1})
    torch.testing.assert_close(block_attention(*given, 0.3, 40, None, sink), whole, rtol=1e-5, atol=1e-6)


def test_bfloat16_is_as_close_as_the_plain_formula_in_bfloat16():
    *given, sink = streams(96, torch.float32)
    exact = plain(*given, 0.3, 32, 5.0, sink)
    low = [stream.detach().bfloat16() for stream in given]
    ours = block_attention(*low, 0.3, 32, 5.0, sink).float()
    theirs = plain(*low, 0.3, 32, 5.0, sink.bfloat16()).float()
    assert 0 < (ours - exact).abs().mean() < 1.3 * (theirs - exact).abs().mean()


def test_memory_grows_with_tokens_not_with_their_square():
    """What autograd keeps of a document of 4,096 tokens: streams and one number a row, no scores."""
    *given, sink = streams(4_096, torch.float32)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor.numel()) or tensor, lambda tensor: tensor):
        block_attention(*given, 0.3, 128, 5.0, sink)
    assert sum(kept) < 4 * sum(stream.numel() for stream in given)


LENGTHS = [5, 70, 1, 33, 90, 34, 64, 3]


def models():
    torch.manual_seed(3)
    config = {
        "vocab_size": 61,
        "hidden_size": 32,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "intermediate_size": 48,
        "max_position_embeddings": 256,
    }
    packed = Qwen3ForCausalLM(Qwen3Config(**config, attn_implementation="packed"))
    plain = Qwen3ForCausalLM(Qwen3Config(**config, attn_implementation="sdpa"))
    with torch.no_grad():
        for parameter in packed.parameters():
            parameter.mul_(3.0)  # initial weights are small enough to hide what attention does
    plain.load_state_dict(packed.state_dict())
    return packed, plain


def row():
    ids = torch.randint(61, (sum(LENGTHS),), generator=torch.Generator().manual_seed(0))
    positions = torch.cat([torch.arange(length) for length in LENGTHS])
    return ids, positions


def packed_logits(model, ids, positions, lengths=tuple(LENGTHS)):
    return model(ids[None], position_ids=positions[None], use_cache=False, document_lengths=list(lengths)).logits[0]


@pytest.mark.parametrize("explicit_up_to", [512, 60, 0])
def test_packed_equals_each_document_alone(monkeypatch, explicit_up_to):
    monkeypatch.setattr(attention, "EXPLICIT_UP_TO", dict.fromkeys(attention.EXPLICIT_UP_TO, explicit_up_to))
    packed, plain = models()
    ids, positions = row()
    ours = packed_logits(packed, ids, positions)
    alone = torch.cat([plain(document[None], use_cache=False).logits[0] for document in ids.split(LENGTHS)])
    torch.testing.assert_close(ours, alone, rtol=1e-4, atol=1e-4)
    ours.square().sum().backward()
    alone.square().sum().backward()
    for (name, one), other in zip(packed.named_parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-3, atol=1e-3 * float(other.grad.abs().max()), msg=name)


def test_without_isolation_the_logits_would_differ():
    packed, _ = models()
    ids, positions = row()
    leaking = packed_logits(packed, ids, positions, [sum(LENGTHS)])
    assert (packed_logits(packed, ids, positions) - leaking).abs().max() > 0.05


def test_a_changed_document_changes_no_other():
    packed, _ = models()
    ids, positions = row()
    changed = ids.clone()
    changed[5:75] = (changed[5:75] + 1) % 61
    before, after = packed_logits(packed, ids, positions), packed_logits(packed, changed, positions)
    assert torch.equal(before[:5], after[:5])
    assert torch.equal(before[75:], after[75:])
    assert not torch.allclose(before[5:75], after[5:75])


def test_bfloat16_products_are_no_worse_than_torchs_own():
    packed, plain = models()
    ids, positions = row()
    exact = packed_logits(packed, ids, positions)
    with torch.autocast("cpu", torch.bfloat16):
        ours = packed_logits(packed, ids, positions)
        torchs = torch.cat([plain(document[None], use_cache=False).logits[0] for document in ids.split(LENGTHS)])
    assert 0 < (ours - exact).abs().mean() < 1.3 * (torchs - exact).abs().mean()


def test_a_batch_without_document_lengths_is_one_document_a_row():
    packed, plain = models()
    ids = torch.randint(61, (3, 20), generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(packed(ids, use_cache=False).logits, plain(ids, use_cache=False).logits, rtol=1e-4, atol=1e-4)


def test_what_it_cannot_do_exactly_is_refused():
    packed, _ = models()
    ids, positions = row()
    with pytest.raises(ValueError, match="add up to 3"):
        packed_logits(packed, ids, positions, [1, 2])
    cache = packed(ids[None, :4], use_cache=True).past_key_values
    with pytest.raises(ValueError, match="no cache"):
        packed(ids[None, 4:5], past_key_values=cache, use_cache=True)


def test_a_kernel_that_shares_key_heads_gives_what_repeated_ones_give(monkeypatch):
    torch.manual_seed(0)
    streams = [torch.randn(2, heads, 40, 16, requires_grad=True) for heads in (6, 2, 2)]
    monkeypatch.setattr(attention, "EXPLICIT_UP_TO", {})
    found = []
    for grouped in (False, True):
        monkeypatch.setattr(attention, "_kernel_groups_heads", lambda *_, grouped=grouped: grouped)
        attended = attention._attend(*streams, scaling=0.25, dropout=0.0)
        found.append([attended, *torch.autograd.grad(attended.square().sum(), streams)])
    for repeated, shared in zip(*found, strict=True):
        torch.testing.assert_close(shared, repeated)
