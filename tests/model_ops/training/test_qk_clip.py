"""QK-Clip: measured logits are those of a naive reference, no head is above the bound after it, and runs continue with it."""

import json

import numpy as np
import pytest
import torch
from architectures import build
from stop_after import StopAfter
from transformers import AttentionInterface

from benchmarks.parallel import documents, on_processes
from model_ops.documents import Document, PackedPlan, to_batch
from model_ops.documents.conversations import join_contexts
from model_ops.families.table import FAMILIES
from model_ops.jobs import ModelError, Progress, Stopped
from model_ops.models.attention import packed_attention
from model_ops.objectives.sft import next_token_loss
from model_ops.parallel import MeshSettings, World
from model_ops.training import TrainingSettings, TuningSettings, train
from model_ops.training.qk_clip import QkClip
from tests.thorough_cases import thorough_except

ALONE = World.alone(torch.device("cpu"))
REFUSED = {
    **dict.fromkeys(["qwen3", "qwen3_moe", "gemma3_text", "olmo2", "olmo3", "glm4_moe", "qwen3_next"], "q_norm and k_norm"),
    "lfm2": "q_layernorm and k_layernorm",
    "gemma2": "soft cap",
}
CLIPPED = [name for name in FAMILIES if name not in REFUSED]
ROWS = documents(40, 48, 61)


def settings(**changes):
    values = {"steps": 3, "learning_rate": 1e-2, "tokens_per_step": 128, "max_length": 64, "micro_batch_tokens": 64}
    return TrainingSettings(**{**values, "precision": "float32", "checkpoint_every": 4, **changes}).resolved()


def branches():
    """Documents that begin alike, as a packed row keeps them: the beginning once."""
    random = np.random.default_rng(3)
    beginning = random.integers(3, 61, 40, dtype=np.int32)
    own = [np.concatenate([beginning, random.integers(3, 61, length, dtype=np.int32)]) for length in (9, 5, 14)]
    apart = [Document("row", ids, np.arange(len(ids)) >= 40) for ids in own]
    [joined] = join_contexts(apart, 4_096)
    return apart, joined


def naive(model, rows, monkeypatch):
    """The largest logits by attention module, from all logits of each document by itself, in float64."""
    found = {}

    def attention(module, query, key, *others, scaling, sliding_window=None, **options):
        logits = scaling * query.double() @ key.repeat_interleave(query.shape[1] // key.shape[1], 1).double().mT
        distances = torch.arange(query.shape[2])[:, None] - torch.arange(query.shape[2])
        seen = (distances >= 0) & (distances < (sliding_window or len(distances)))
        found.setdefault(module, []).append(logits.masked_fill(~seen, -torch.inf).amax((0, 2, 3)))
        return packed_attention(module, query, key, *others, scaling=scaling, sliding_window=sliding_window, **options)

    with torch.no_grad(), monkeypatch.context() as patched:
        patched.setitem(AttentionInterface._global_mapping, "packed", attention)
        for row in rows:
            model(torch.tensor(row.input_ids)[None].long(), use_cache=False)
    return {module: torch.stack(each).amax(0).float() for module, each in found.items()}


@pytest.mark.parametrize("name", thorough_except(["llama", "mistral", "deepseek_v3", "phi3"], CLIPPED))
def test_logits_of_packed_micro_batches_are_those_of_the_naive_reference(name, monkeypatch):
    model, (apart, joined) = build(name), branches()
    clip = QkClip(model, settings(qk_clip=1e6), ALONE)
    for rows in ([*ROWS[:6], joined], ROWS[6:20]):
        with clip.watch():
            model(**to_batch(rows).model_inputs)
    expected = naive(model, [*ROWS[:20], *apart], monkeypatch)
    assert clip.largest.keys() == expected.keys() and len(expected) == 2
    for module, largest in expected.items():
        torch.testing.assert_close(clip.largest[module], largest, rtol=1e-4, atol=1e-5)
    most = max(float(largest.max()) for largest in expected.values())
    assert clip.after_step(changed=True) == {"attention_logit": pytest.approx(most, rel=1e-4), "clipped_heads": 0}


def measured_apart(model, batch):
    """Measures each attention module on one input, that of the first call; returns the call."""
    inputs = {}
    hooks = [
        module.register_forward_pre_hook(lambda module, given, named: inputs.update({module: (given, named)}), with_kwargs=True)
        for name, module in model.named_modules()
        if name.endswith("self_attn")
    ]
    model(**batch.model_inputs)
    for hook in hooks:
        hook.remove()

    def measure(clip):
        with clip.watch():
            for module, (given, named) in inputs.items():
                module(*given, **named)
        return {module: largest.clone() for module, largest in clip.largest.items()}

    return measure


@pytest.mark.parametrize("name", thorough_except(["llama", "qwen2", "deepseek_v3", "phi3"], CLIPPED))
def test_every_head_above_the_bound_ends_at_it_and_others_keep_their_logits(name):
    model = build(name)
    measure = measured_apart(model, to_batch(ROWS[:10]))
    before = measure(QkClip(model, settings(qk_clip=1e6), ALONE))
    bound = float(torch.cat(list(before.values())).median())
    assert bound > 0
    clip = QkClip(model, settings(qk_clip=bound), ALONE)
    measure(clip)
    numbers = clip.after_step(changed=True)
    assert numbers["clipped_heads"] == sum(int((largest > bound).sum()) for largest in before.values()) > 0
    for module, largest in measure(clip).items():
        torch.testing.assert_close(largest, before[module].clamp(max=bound), rtol=1e-4, atol=1e-5)


def test_groups_below_the_bound_keep_their_bits_and_a_step_that_was_skipped_scales_nothing():
    model = build("llama", num_hidden_layers=1)
    measure = measured_apart(model, to_batch(ROWS[:10]))
    [largest] = measure(QkClip(model, settings(qk_clip=1e6), ALONE)).values()
    of_groups = largest.view(2, 2).amax(1)
    above, most = int(of_groups.argmax()), float(of_groups.max())
    clip = QkClip(model, settings(qk_clip=float(of_groups.mean())), ALONE)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    measure(clip)
    assert clip.after_step(changed=False) == {"attention_logit": pytest.approx(most), "clipped_heads": 0}
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    measure(clip)
    assert clip.after_step(changed=True)["clipped_heads"] >= 1
    for name, value in model.state_dict().items():
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            groups, old = (each.view(2, -1, each.shape[-1]) for each in (value, before[name]))
            assert torch.equal(groups[1 - above], old[1 - above]) and not torch.equal(groups[above], old[above])
        else:
            assert torch.equal(value, before[name]), name


def trained(folder, progress=None, world=None, name="llama", **changes):
    """(weights, lines of metrics.jsonl) of a short training."""
    chosen, model = settings(**changes), build(name)
    world = world or ALONE
    world.place(model, "float32")
    plan = PackedPlan(ROWS, chosen)
    train(model, plan, next_token_loss, chosen, folder / ".work", progress or Progress(), "sft", world=world)
    weights = {
        name: getattr(value, "full_tensor", lambda value=value: value)().detach() for name, value in model.named_parameters()
    }
    lines = (folder / "metrics.jsonl").read_text().splitlines() if world.leads else []
    return weights, [json.loads(line) for line in lines]


def test_measuring_alone_changes_no_weight_and_without_the_key_nothing_is_logged(tmp_path):
    without, lines = trained(tmp_path / "without")
    watched, numbers = trained(tmp_path / "watched", qk_clip=1e6)
    assert all(torch.equal(value, without[name]) for name, value in watched.items())
    assert not any("attention_logit" in line or "clipped_heads" in line for line in lines)
    assert all(line["attention_logit"] > 0 and line["clipped_heads"] == 0 for line in numbers)


def test_the_micro_batch_of_the_dry_run_does_not_count(tmp_path, monkeypatch):
    monkeypatch.setattr(PackedPlan, "heaviest", lambda *_: to_batch(ROWS))
    _, tried = trained(tmp_path / "tried", qk_clip=2.0, steps=1)
    _, lines = trained(tmp_path / "untried", qk_clip=2.0, steps=1, dry_run=False)
    assert [line["attention_logit"] for line in tried] == [line["attention_logit"] for line in lines]


@pytest.mark.parametrize("checkpointing", ["selective", "full"])
def test_recomputed_blocks_are_clipped_alike(checkpointing, tmp_path):
    bound = {"qk_clip": 2.0, "optimizer": "muon"}
    kept, lines = trained(tmp_path / "kept", **bound)
    again, numbers = trained(tmp_path / "again", activation_checkpointing=checkpointing, **bound)
    assert all(line["clipped_heads"] > 0 for line in lines[:2])
    assert [line["attention_logit"] for line in numbers] == [line["attention_logit"] for line in lines]
    assert all(torch.equal(value, kept[name]) for name, value in again.items())


def test_a_stopped_run_continues_to_the_same_weights_bit_for_bit(tmp_path):
    straight, lines = trained(tmp_path / "straight", qk_clip=2.0)
    with pytest.raises(Stopped):
        trained(tmp_path / "cut", StopAfter(1), qk_clip=2.0)
    resumed, numbers = trained(tmp_path / "cut", qk_clip=2.0)
    assert all(torch.equal(value, straight[name]) for name, value in resumed.items())
    assert [line["attention_logit"] for line in numbers] == [line["attention_logit"] for line in lines]
    assert lines[-1]["attention_logit"] < lines[0]["attention_logit"]


def test_processes_that_share_weights_and_rows_clip_as_one(tmp_path):
    def shared():
        mesh = MeshSettings(dp_shard=2)
        world = World.start(mesh, torch.device("cpu"))
        weights, lines = trained(tmp_path / "shared", world=world, name="qwen2", qk_clip=2.0, mesh=mesh)
        if world.leads:
            torch.save((weights, lines), tmp_path / "found.pt")

    on_processes(2, shared)
    weights, lines = torch.load(tmp_path / "found.pt")
    alone, numbers = trained(tmp_path / "alone", name="qwen2", qk_clip=2.0)
    assert [line["clipped_heads"] for line in lines] == [line["clipped_heads"] for line in numbers]
    assert lines[0]["clipped_heads"] > 0
    assert [line["attention_logit"] for line in lines] == pytest.approx([line["attention_logit"] for line in numbers], rel=1e-3)
    assert max(float((value - alone[name]).abs().max()) for name, value in weights.items()) < 2e-3


@pytest.mark.parametrize("name", REFUSED)
def test_models_whose_logits_the_weights_do_not_scale_are_refused(name):
    with pytest.raises(ModelError, match=f"{REFUSED[name]}.*leave qk_clip out"):
        QkClip(build(name), settings(qk_clip=100.0), ALONE)


def test_frozen_weights_unknown_attention_and_split_heads_are_refused():
    with pytest.raises(ModelError, match="frozen or quantized"):
        QkClip(build("llama").requires_grad_(False), settings(qk_clip=100.0), ALONE)
    with pytest.raises(ModelError, match="no attention with known"):
        QkClip(torch.nn.Linear(2, 2), settings(qk_clip=100.0), ALONE)
    for method in ("lora", "qlora"):
        with pytest.raises(ValueError, match=f"frozen with method {method}: set method to full"):
            TuningSettings(method=method, qk_clip=100.0)
    for axis in ("tp", "cp"):
        with pytest.raises(ValueError, match="set tp and cp of the mesh to 1"):
            TuningSettings(mesh={axis: 2}, qk_clip=100.0)
