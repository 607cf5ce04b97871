"""Optimizers: Muon against its formula written out and against torch's, who gets which update, resume to the bit."""

import itertools
import json
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from stop_after import StopAfter
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from transformers import AutoConfig, AutoModelForCausalLM

from benchmarks.parallel import on_processes
from model_ops.jobs import ModelError, Progress, Stopped
from model_ops.tensors.batch import Batch, one_term
from model_ops.training import TrainingSettings, train
from model_ops.training.optimizers import Muon, build_optimizer, learning_rate_at, orthogonal, parameter_groups, state_bytes
from tests.model_ops.tiny_models import tiny_model
from tests.thorough_cases import thorough_except

PEAK = 0.01


def rates(steps, **values):
    chosen = TrainingSettings(steps=steps, learning_rate=PEAK, **values).resolved()
    return [learning_rate_at(step, steps, chosen) / PEAK for step in range(steps)]


def test_cosine_ends_at_its_floor_and_is_halfway_in_the_middle():
    found = rates(12, warmup_share=0.25, final_learning_rate_share=0.2)
    assert found[:4] == pytest.approx([1 / 3, 2 / 3, 1, 1])
    assert found[-1] == pytest.approx(0.2)
    assert rates(101, warmup_share=0, final_learning_rate_share=0.2)[50] == pytest.approx(0.6)


def test_wsd_is_flat_and_then_falls_by_the_root():
    found = rates(100, schedule="wsd", warmup_share=0.1, decay_share=0.2)
    assert found[9:80] == pytest.approx([1.0] * 71)
    assert found[80] < 1
    assert found[89] == pytest.approx(1 - 0.9 * 0.5**0.5)
    assert found[-1] == pytest.approx(0.1)


def test_linear_falls_by_the_same_in_every_step():
    found = rates(11, schedule="linear", warmup_share=0, final_learning_rate_share=0)
    assert found == pytest.approx([1 - step / 10 for step in range(11)], abs=1e-12)


def test_constant_stays():
    assert rates(5, schedule="constant", warmup_share=0.4) == pytest.approx([0.5, 1, 1, 1, 1])


@given(
    st.sampled_from(["cosine", "wsd", "linear", "constant"]),
    st.integers(1, 300),
    st.floats(0, 0.5),
    st.floats(0, 1),
    st.floats(0.01, 0.5),
)
def test_every_schedule_rises_to_the_peak_and_never_again(schedule, steps, warmup, floor, decay):
    found = rates(steps, schedule=schedule, warmup_share=warmup, final_learning_rate_share=floor, decay_share=decay)
    rising = round(warmup * steps)
    assert all(0 <= rate <= 1 + 1e-12 for rate in found)
    assert all(a < b for a, b in itertools.pairwise(found[:rising]))
    assert all(a >= b - 1e-12 for a, b in itertools.pairwise(found[rising:]))
    if rising:
        assert found[rising - 1] == pytest.approx(1)
    if schedule in ("cosine", "linear", "wsd") and steps - rising > 1:
        assert found[-1] == pytest.approx(floor)


@pytest.mark.parametrize(
    "values,said",
    [
        ({"schedule": "wsd", "warmup_share": 0.5, "decay_share": 0.6}, "more than the whole run"),
        ({"schedule": "wsd", "warmup_share": 0.9}, "more than the whole run"),
        ({"schedule": "step"}, "constant"),
    ],
)
def test_shares_that_do_not_add_up_are_refused(values, said):
    with pytest.raises(ValidationError, match=said):
        TrainingSettings(**values)


LEARNING_RATE = 3e-3


def chosen(**values):
    return TrainingSettings(**{"learning_rate": LEARNING_RATE, "weight_decay": 0.1, "steps": 8, **values}).resolved()


def written_out(matrix):
    """Five iterations of Newton and Schulz as in Keller Jordan's post, in float64."""
    x = matrix.double() / matrix.double().norm()
    tall = len(x) > len(x[0])
    x = x.T if tall else x
    for _ in range(5):
        a = x @ x.T
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x.T if tall else x


@pytest.mark.parametrize("shape", [(24, 24), (16, 40), (40, 16), (1, 8)])
def test_orthogonal_is_newton_schulz_written_out(shape):
    torch.manual_seed(0)
    matrix = torch.randn(shape)
    found = orthogonal(matrix)
    wanted = written_out(matrix)
    assert (found.double() - wanted).norm() < 0.025 * wanted.norm()  # bfloat16 products; another coefficient differs by more
    in_float32 = orthogonal(matrix, torch.float32)
    torch.testing.assert_close(in_float32.double(), wanted, atol=1e-5, rtol=0)
    assert not torch.equal(in_float32, found) or shape == (1, 8)
    values = torch.linalg.svdvals(found)
    assert values.min() > 0.3 and values.max() < 1.3
    assert found.dtype == torch.float32
    assert torch.equal(orthogonal(torch.zeros(shape)), torch.zeros(shape))


def test_a_stack_of_matrices_is_handled_matrix_by_matrix():
    torch.manual_seed(1)
    stack = torch.randn(3, 8, 12) * torch.tensor([1e-3, 1.0, 1e3])[:, None, None]
    for each, alone in zip(orthogonal(stack), stack, strict=True):
        wanted = orthogonal(alone)
        assert (each - wanted).norm() < 0.02 * wanted.norm()


def test_muon_moves_matrices_as_torch_does_and_the_rest_as_adamw():
    torch.manual_seed(2)
    start = [torch.randn(12, 20), torch.randn(20, 6), torch.randn(9), torch.randn(30, 5)]
    mine, theirs = ([nn.Parameter(value.clone()) for value in start] for _ in range(2))
    muon = Muon(
        [{"params": mine[:2], "matrices": True, "weight_decay": 0.1}, {"params": mine[2:], "weight_decay": 0.05}],
        lr=LEARNING_RATE,
    )
    others = [
        torch.optim.Muon(theirs[:2], lr=LEARNING_RATE, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(theirs[2:], lr=LEARNING_RATE, weight_decay=0.05, betas=(0.9, 0.95), fused=True),
    ]
    for _ in range(4):
        for one, other in zip(mine, theirs, strict=True):
            one.grad = torch.randn_like(one)
            other.grad = one.grad.clone()
        for optimizer in (muon, *others):
            optimizer.step()
    for one, other in zip(mine[2:], theirs[2:], strict=True):
        assert torch.equal(one, other)
    for one, other, began in zip(mine[:2], theirs[:2], start, strict=False):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=0)
        assert (one - began).abs().mean() > 1e-3


def test_muon_gives_adamw_a_share_of_its_rate():
    torch.manual_seed(4)
    start = torch.randn(9)
    mine, theirs = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    mine.grad = torch.randn(9)
    theirs.grad = mine.grad.clone()
    Muon([{"params": [mine]}], lr=0.5, adamw_share=0.1).step()
    torch.optim.AdamW([theirs], lr=0.05, weight_decay=0.0, betas=(0.9, 0.95), fused=True).step()
    torch.testing.assert_close(mine, theirs, atol=1e-7, rtol=1e-6)


def test_muon_s_first_step_by_hand():
    torch.manual_seed(3)
    weight = nn.Parameter(torch.randn(6, 10))
    before, weight.grad = weight.detach().clone(), torch.randn(6, 10)
    Muon([{"params": [weight], "matrices": True, "weight_decay": 0.5}], lr=0.01, momentum=0.9).step()
    expected = before * (1 - 0.01 * 0.5) - 0.01 * 0.2 * 10**0.5 * written_out(weight.grad).float()
    torch.testing.assert_close(weight.detach(), expected, atol=2e-4, rtol=0)


@pytest.mark.parametrize("precision, error", [("float32", 1e-5), ("bfloat16", 0.03)])
def test_muon_iterates_in_the_precision_of_the_run(precision, error):
    torch.manual_seed(3)
    layer = nn.Linear(10, 6, bias=False)
    layer.weight.data.zero_()
    layer.weight.grad = torch.randn(6, 10)
    model = nn.ModuleDict({"layers": nn.ModuleList([layer])})
    optimizer = build_optimizer(model, chosen(optimizer="muon", precision=precision))
    optimizer.step()
    found = layer.weight.detach() / (-LEARNING_RATE * 0.2 * 10**0.5)
    gap = float((found - written_out(layer.weight.grad).float()).abs().max())
    assert gap < error
    assert (gap > 1e-4) == (precision == "bfloat16")


def test_muon_refuses_what_is_no_matrix():
    with pytest.raises(ValueError, match=r"shape \(5,\)"):
        Muon([{"params": [nn.Parameter(torch.zeros(5))], "matrices": True}], lr=1.0)


ARCHITECTURES = {
    "qwen3 tied": ("qwen3", {"tied": True}),
    "llama tied": ("llama", {"tied": True}),
    "llama untied": ("llama", {"tied": False}),
    "llama with biases": ("llama", {"tied": False, "attention_bias": True, "mlp_bias": True}),
    "qwen3 experts": ("qwen3_moe", {"tied": False, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}),
    "gpt-oss": ("gpt_oss", {"tied": False, "num_local_experts": 4, "num_experts_per_tok": 2}),
}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_who_is_moved_how(architecture):
    kind, changes = ARCHITECTURES[architecture]
    config = AutoConfig.for_model(
        kind,
        **{
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 8,
            "vocab_size": 96,
            "tie_word_embeddings": changes["tied"],
            **changes,
        },
    )
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager")
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    groups = parameter_groups(model, chosen())
    found = {names[id(parameter)]: group for group in groups for parameter in group["params"]}
    assert found.keys() == set(names.values()) and sum(len(group["params"]) for group in groups) == len(names)
    for name, group in found.items():
        last = name.rpartition(".")[2]
        plain = "norm" in name or "bias" in last or last == "sinks"
        embedding = name == "model.embed_tokens.weight"
        assert (group["weight_decay"] == 0) == (plain or embedding), name
        assert group["matrices"] == (not plain and not embedding and name != "lm_head.weight"), name
        assert group["embeddings"] == embedding
    assert ("lm_head.weight" in found) == (not changes["tied"])
    assert len({name for name, group in found.items() if group["matrices"] and "experts" in name}) == (
        4 if "experts" in architecture or kind == "gpt_oss" else 0
    )


def test_frozen_weights_are_left_out():
    model = tiny_model(layers=2)
    model.model.layers[0].mlp.up_proj.weight.requires_grad_(True)
    groups = parameter_groups(model, chosen())
    assert [len(group["params"]) for group in groups] == [1] and groups[0]["matrices"]


class Toy(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(7)
        self.embed = nn.Embedding(80, 64)
        self.hidden = nn.Linear(64, 64)
        self.norm = nn.LayerNorm(64)
        self.lm_head = nn.Linear(64, 80, bias=False)

    def forward(self, ids):
        return self.lm_head(self.norm(self.hidden(self.embed(ids)).relu()))


OPTIMIZERS = ["adamw", "muon", "adamw_8bit"]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_each_learns(name):
    if name == "adamw_8bit":
        pytest.importorskip("bitsandbytes")
    model = Toy()
    optimizer = build_optimizer(model, chosen(optimizer=name, learning_rate=1e-2))
    ids = torch.arange(80)
    losses = []
    for _ in range(40):
        loss = nn.functional.cross_entropy(model(ids), ids.roll(1))
        losses.append(float(loss.detach()))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert losses[-1] < 0.2 * losses[0]
    held = sum(
        value.numel() * value.element_size()
        for state in optimizer.state.values()
        for key, value in state.items()
        if isinstance(value, torch.Tensor) and value.ndim and "qmap" not in key and "absmax" not in key
    )
    assert held == state_bytes(optimizer)


def test_adamw_8bit_keeps_embeddings_in_32_bits_and_follows_adamw():
    pytest.importorskip("bitsandbytes")
    one, other = Toy(), Toy()
    optimizers = [build_optimizer(one, chosen(optimizer="adamw_8bit")), build_optimizer(other, chosen())]
    torch.manual_seed(0)
    for _ in range(5):
        for mine, theirs in zip(one.parameters(), other.parameters(), strict=True):
            mine.grad = torch.randn_like(mine)
            theirs.grad = mine.grad.clone()
        for optimizer in optimizers:
            optimizer.step()
    kept = {name: optimizers[0].state[parameter]["state1"].dtype for name, parameter in one.named_parameters()}
    assert kept["embed.weight"] == torch.float32 and kept["norm.weight"] == torch.float32
    assert kept["hidden.weight"] == kept["lm_head.weight"] == torch.uint8
    began = dict(Toy().named_parameters())
    for (name, mine), theirs in zip(one.named_parameters(), other.parameters(), strict=True):
        moved = (theirs - began[name]).abs().mean()
        assert (mine - theirs).abs().mean() < 0.1 * moved, name


def test_without_bitsandbytes_it_is_said_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    monkeypatch.delitem(sys.modules, "model_ops.training.adamw_8bit", raising=False)
    with pytest.raises(ModelError, match=r"install .*millrace\[qlora\]"):
        build_optimizer(Toy(), chosen(optimizer="adamw_8bit"))


class Plan:
    """Eight steps of fixed random tokens."""

    def __len__(self):
        return 8

    def step(self, index, rank=0, ranks=1):
        ids = torch.randint(80, (24,), generator=torch.Generator().manual_seed(index))
        return [Batch(ids, torch.arange(24), ids.roll(-1), torch.ones(24), [24], [f"row-{index}"])]


def plain_loss(model, batch):
    return one_term(nn.functional.cross_entropy(model(batch.input_ids), batch.labels, reduction="sum"), batch.tokens)


@pytest.mark.parametrize("name", thorough_except(["muon"], OPTIMIZERS))
def test_a_stopped_run_continues_to_the_same_weights_bit_for_bit(name, tmp_path):
    if name == "adamw_8bit":
        pytest.importorskip("bitsandbytes")
    settings = chosen(optimizer=name, precision="float32")
    straight, resumed = Toy(), Toy()
    train(straight, Plan(), plain_loss, settings, tmp_path / "a" / ".work", Progress(), "toy")
    with pytest.raises(Stopped):
        train(Toy(), Plan(), plain_loss, settings, tmp_path / "b" / ".work", StopAfter(5), "toy")
    result = train(resumed, Plan(), plain_loss, settings, tmp_path / "b" / ".work", Progress(), "toy")
    assert result.resumed_from == 5
    for key, value in straight.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[key]), key
        assert not torch.equal(value, Toy().state_dict()[key]), key


def _a_sharded_run(found):
    """On each of two processes: Muon on matrices cut by row, by column and by expert, beside the same ones uncut."""
    mesh = init_device_mesh("cpu", (2,))
    torch.manual_seed(0)
    values = [torch.randn(10, 6), torch.randn(5, 8), torch.randn(4, 6, 8), torch.randn(7)]
    grads = [[torch.randn_like(value) for value in values] for _ in range(3)]
    cut = [nn.Parameter(distribute_tensor(value, mesh, [Shard(dim)])) for value, dim in zip(values, (0, 1, 0, 0), strict=True)]
    uncut = [nn.Parameter(value.clone()) for value in values]
    for parameters in (cut, uncut):
        optimizer = Muon([{"params": parameters[:3], "matrices": True}, {"params": parameters[3:]}], lr=0.01)
        for step in grads:
            for parameter, grad in zip(parameters, step, strict=True):
                parameter.grad = distribute_tensor(grad, mesh, parameter.placements) if parameters is cut else grad.clone()
            optimizer.step()
    gaps = [float((one.full_tensor() - other.detach()).abs().max()) for one, other in zip(cut, uncut, strict=True)]
    moved = [float((one.full_tensor() - value).abs().max()) for one, value in zip(cut, values, strict=True)]
    (found / f"{torch.distributed.get_rank()}.json").write_text(json.dumps({"gaps": gaps, "moved": moved}))
    with pytest.raises(ModelError, match="sharded weights"):
        model = nn.Linear(4, 4)
        model.weight = nn.Parameter(distribute_tensor(model.weight.detach(), mesh, [Shard(0)]))
        build_optimizer(model, chosen(optimizer="adamw_8bit"))


def test_sharded_matrices_move_as_whole_ones(tmp_path):
    pytest.importorskip("bitsandbytes")
    on_processes(2, lambda: _a_sharded_run(tmp_path))
    for rank in range(2):
        found = json.loads((tmp_path / f"{rank}.json").read_text())
        assert max(found["gaps"]) < 1e-5 and len(found["gaps"]) == 4
        assert min(found["moved"]) > 1e-3
