"""Choosing a setup, with a made-up model of memory: laws of the choice, and what is said where nothing fits."""

import re
from dataclasses import dataclass, replace
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_ops.jobs import ModelError
from model_ops.machine import DeviceRates, device_rates
from model_ops.machine.devices import DEVICES, UnknownDevice, parse_devices
from model_ops.planning.choice import (
    LEAST_WIDTH,
    PLANNED_FOR,
    NothingFits,
    candidates,
    choose,
    meshes,
    speed_of,
    tokens_per_second,
    utilisation,
)
from model_ops.planning.memory_plan import GIB, MeshSizes, Needs, Setup, WeightCounts, memory_of
from model_ops.planning.step_trace import head_of

H100 = DEVICES["h100"]


@dataclass(frozen=True)
class Line:
    """So many bytes a token and block kept, and a fixed multiple of it at work."""

    saved: int

    def peak(self, layers, accumulating):
        return self.beyond_gradients(layers)

    def beyond_gradients(self, layers):
        return self.saved * layers + 40 * self.saved


KEPT = {"none": 200_000, "selective": 90_000, "full": 8_192}


def needs(method="full", billions=8.0, length=4_096, per_step=131_072, **changes):
    block = int(billions * 1e9 / 32)
    trace = lambda tokens, checkpointing, tp: Line(KEPT[checkpointing] * tokens // tp)  # noqa: E731
    made = Needs(
        name="m",
        method=method,
        counts=WeightCounts(32, block, block, 0, adapters=block // 200),
        hidden=2_048,
        heads=32,
        kv_heads=8,
        max_length=length,
        tokens_per_step=per_step,
        trace=trace,
        flops_per_token=6e9 * billions,
        attention_flops=0.4e9 * billions,
        moved_bytes=5e6 * billions,
        forward_share=1 / 3,
    )
    return replace(made, **changes)


def test_what_fits_whole_is_replicated_and_what_does_not_is_shared():
    small = choose(needs(billions=1.0), 8, H100).setup
    assert small.mesh == MeshSizes(dp_replicate=8)
    large = choose(needs(), 8, H100)
    assert large.setup.mesh.shards == 8
    assert large.memory.total <= PLANNED_FOR * H100.memory_gib * GIB


def test_checkpointing_only_where_it_is_needed():
    assert choose(needs("lora", 1.0), 1, H100).setup.checkpointing == "none"
    plan = choose(needs("lora", 8.0, length=65_536), 1, H100)
    assert plan.setup.checkpointing == "full"
    assert any("one more forward pass" in reason for reason in plan.reasons)


def test_long_rows_and_few_of_them_are_cut_along_the_sequence():
    plan = choose(needs("lora", length=131_072, per_step=131_072), 8, H100)
    assert plan.setup.mesh.cp == 8
    assert any("cp 8" in reason and "too few rows" in reason for reason in plan.reasons)


def test_every_choice_has_its_reason():
    plan = choose(needs(), 8, H100)
    said = " ".join(plan.reasons)
    assert all(word in said for word in [*plan.setup.mesh.axes(), "micro-batch", "activation checkpointing"])


def test_what_cannot_fit_is_refused_with_what_can():
    lora = needs("lora", length=32_768)
    with pytest.raises(NothingFits) as refused:
        choose(needs(length=32_768, other_methods=(lambda: lora,)), 1, H100)
    text = str(refused.value)
    assert "full fine-tuning at 32,768 tokens does not fit 1xH100 (needs at least" in text
    assert "LoRA does (" in text
    assert "xH100 do (" in text
    needed = float(re.search(r"needs at least ([\d.]+) GiB", text).group(1))
    least = min(memory_of(needs(length=32_768), setup, H100).total for setup in candidates(needs(length=32_768), 1, H100)) / GIB
    assert needed == pytest.approx(least, rel=0.01) and needed > 16 * 8e9 / GIB > H100.memory_gib
    choose(lora, 1, H100)


def test_more_devices_named_in_a_refusal_do_fit():
    asked = needs(billions=70.0)
    with pytest.raises(NothingFits) as refused:
        choose(asked, 2, H100)
    more = int(str(refused.value).split("xH100 do (")[0].rpartition(" ")[2])
    assert more > 2
    assert choose(asked, more, H100).memory.total < H100.memory_gib * GIB


@given(count=st.sampled_from([1, 2, 4, 6, 8, 12, 16, 64]), method=st.sampled_from(["full", "lora"]))
def test_meshes_use_every_device_and_cut_whole_heads(count, method):
    found = list(meshes(needs(method), count, H100))
    assert found
    for mesh in found:
        assert mesh.processes == count
        assert 32 % mesh.tp == 0 and (32 // mesh.tp) % mesh.cp == 0
        assert mesh.tp <= H100.per_node
        assert mesh.ep == 1, "there are no experts to share"


@given(shards=st.sampled_from([1, 2, 4, 8]), tokens=st.sampled_from([4_096, 8_192]))
def test_more_sharing_and_fewer_tokens_never_take_more(shards, tokens):
    def total(mesh, some):
        memory = memory_of(needs(), Setup(mesh, some, "full"), H100)
        return memory.weights + memory.gradients + memory.optimizer + memory.saved

    assert total(MeshSizes(dp_shard=2 * shards), tokens) < total(MeshSizes(dp_shard=shards), tokens)
    assert total(MeshSizes(dp_shard=shards), tokens) < total(MeshSizes(dp_shard=shards), 2 * tokens)


def test_the_fastest_that_fits_is_taken():
    asked, room = needs(), PLANNED_FOR * H100.memory_gib * GIB
    chosen = choose(asked, 4, H100).setup
    fitting = [setup for setup in candidates(asked, 4, H100) if memory_of(asked, setup, H100).total <= room]
    assert speed_of(asked, chosen, H100) == pytest.approx(
        max(speed_of(asked, setup, H100) for setup in fitting if setup.mesh.processes == 4), rel=1e-5
    )
    assert tokens_per_second(asked, chosen, H100) == pytest.approx(
        max(tokens_per_second(asked, setup, H100) for setup in fitting), rel=1e-5
    )


def test_speed_is_what_was_measured_elsewhere():
    """NVIDIA's NeMo, LoRA of Llama 3 8B, rows of 4,096 tokens, on one H100: 12,473 tokens/s at 32.2 GFLOP a token (docs of
    NeMo). Plain layers, of which each operation passes over memory: 93 MB a token at bfloat16."""
    asked = needs("lora", flops_per_token=32.2e9, attention_flops=3.2e9, moved_bytes=93e6)
    for tokens in (8_192, 16_384):
        assert tokens_per_second(asked, Setup(MeshSizes(), tokens, "none"), H100) == pytest.approx(12_473, rel=0.1)


@pytest.fixture
def rates(monkeypatch, tmp_path):
    """Keeps rates of a device: rates("H100", matmul_tflops=...); no device is here, and nothing is kept yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(device_rates, "NVIDIA", tmp_path / "none")
    device_rates.rates_of.cache_clear()
    yield lambda name, *values: device_rates.keep(DeviceRates(*values), name) or device_rates.rates_of.cache_clear()
    device_rates.rates_of.cache_clear()


def test_a_token_takes_its_products_its_attention_and_its_bytes_at_the_measured_rates(rates):
    rates("H100", 500.0, 250.0, 2.0)
    asked = needs("lora", flops_per_token=30e9, attention_flops=5e9, moved_bytes=40e6)
    seconds = 25e9 / 500e12 + 5e9 / 250e12 + 40e6 / 2e12
    assert utilisation(asked, H100) == pytest.approx(30e9 / seconds / 989e12)
    setup = Setup(MeshSizes(), 16_384, "none")
    assert tokens_per_second(asked, setup, H100) == pytest.approx(1 / seconds, rel=0.03), "a little is lost at the start"


def test_without_a_measurement_shares_of_the_data_sheet_are_assumed(rates):
    found = device_rates.rates_of(H100, H100.bf16_tflops)
    assert found == pytest.approx((0.71 * 989, 0.36 * 989, 0.88 * 3.35))
    assert device_rates.rates_of(parse_devices("24GB")[1], 150.0).copy_tb_s == pytest.approx(0.88 * 150 / 250)
    rates("H100", 1.0, 2.0, 3.0)
    assert device_rates.rates_of(H100, 989.0) == (1.0, 2.0, 3.0)
    assert device_rates.rates_of(DEVICES["h200"], 989.0) != (1.0, 2.0, 3.0)


def test_every_saving_of_memory_costs_speed():
    def speed(asked=None, mesh=None, tokens=8_192, checkpointing="none", **more):
        return speed_of(asked or needs(per_step=1 << 20), Setup(mesh or MeshSizes(), tokens, checkpointing, **more), H100)

    plain = speed()
    assert 0.72 < speed(checkpointing="full") / plain < 0.78, "a third of the work is done twice: 3 / 4"
    assert speed(checkpointing="full") < speed(checkpointing="selective") < plain
    assert speed(mesh=MeshSizes(dp_shard=2)) < speed(mesh=MeshSizes(dp_replicate=2))
    assert speed(mesh=MeshSizes(tp=4)) < speed(mesh=MeshSizes(tp=2)) < plain
    assert speed(tokens=1_024) < speed(tokens=4_096) < plain and speed(tokens=192) < 0.6 * plain
    assert speed(offload=True) < plain


def small(millions, layers, hidden, heads, length, per_step):
    block = int(millions * 1e6 / layers)
    trace = lambda tokens, checkpointing, tp: Line(hidden * 40 * tokens // tp)  # noqa: E731
    return needs(
        counts=WeightCounts(layers, block, block, 0),
        hidden=hidden,
        heads=heads,
        kv_heads=min(8, heads),
        length=length,
        per_step=per_step,
        trace=trace,
        flops_per_token=6e6 * millions,
        attention_flops=0.4e6 * millions,
        moved_bytes=5e3 * millions,
        name="small",
    )


@pytest.mark.parametrize("count", [2, 4, 8, 16])
def test_a_tiny_model_takes_one_device_and_says_why(count):
    plan = choose(small(2.5, 10, 128, 4, 1_024, 4_096), count, H100)
    assert plan.setup.mesh == MeshSizes()
    assert plan.reasons[0].startswith(f"1 of {count} devices: this model is so small")
    assert 1e5 < plan.tokens_per_second < 1e6  # 4,096 tokens in some milliseconds; arithmetic alone would give 2.6e7


def test_a_tiny_model_with_many_rows_a_step_is_replicated_and_never_cut():
    plan = choose(small(2.5, 10, 128, 4, 1_024, 1_048_576), 8, H100)
    assert plan.setup.mesh == MeshSizes(dp_replicate=8)


@given(
    per_step=st.sampled_from([4_096, 16_384, 131_072]),
    count=st.sampled_from([1, 2, 3, 6, 8, 16]),
    size=st.sampled_from([(2.5, 10, 128, 4), (600, 28, 1_024, 16), (1_700, 28, 2_048, 16)]),
)
def test_what_fits_otherwise_is_not_cut_into_narrow_pieces(per_step, count, size):
    setup = choose(small(*size, 4_096, per_step), count, H100).setup
    assert setup.mesh.tp == 1 or size[2] // setup.mesh.tp >= LEAST_WIDTH
    assert count % setup.mesh.processes == 0


def test_what_fits_in_no_other_way_is_cut_narrow_and_says_so():
    wide = small(600, 28, 1_024, 16, 32_768, 32_768)
    only_tp = replace(wide, trace=lambda tokens, checkpointing, tp: Line((10**12 if tp < 4 else 100) * tokens))
    plan = choose(only_tp, 8, H100)
    assert plan.setup.mesh.tp >= 4
    assert any("nothing else fits, though" in reason and "is narrow" in reason for reason in plan.reasons)


def test_few_rows_on_many_devices_say_how_many():
    rows = choose(needs("lora", 0.6, hidden=1_024, heads=1, kv_heads=1, length=16_384, per_step=32_768), 8, H100)
    assert rows.setup.mesh == MeshSizes(dp_replicate=2)
    assert "2 of 8 devices: a step has only 2 rows of 16,384 tokens" in rows.reasons[0]


def test_an_idle_device_is_used_where_it_pays_a_fifth():
    for count in (2, 4, 8):
        plan = choose(needs(billions=1.0), count, H100)
        assert plan.setup.mesh.processes == count


def test_state_of_a_full_fine_tuning_is_sixteen_bytes_a_weight():
    memory = memory_of(needs(), Setup(MeshSizes(), 4_096, "full"), H100)
    assert memory.weights + memory.gradients + memory.optimizer == pytest.approx(16 * 8e9, rel=1e-6)
    eight = memory_of(needs(optimizer="adamw_8bit"), Setup(MeshSizes(), 4_096, "full"), H100)
    assert eight.optimizer == pytest.approx(2.04 * 8e9, rel=1e-6)


def test_a_frozen_base_has_neither_gradient_nor_optimizer():
    memory = memory_of(needs("lora"), Setup(MeshSizes(), 4_096, "full"), H100)
    assert memory.weights == pytest.approx(2 * 8e9 + 4 * 8e9 / 200, rel=1e-6)
    assert memory.gradients == pytest.approx(4 * 8e9 / 200, rel=1e-6)
    assert memory_of(needs("qlora"), Setup(MeshSizes(), 4_096, "full"), H100).weights < 0.28 * memory.weights


def test_offload_keeps_two_blocks_inputs():
    kept, moved = (
        memory_of(needs("lora"), Setup(MeshSizes(), 4_096, "full", offload), H100).saved for offload in (False, True)
    )
    assert kept - moved == 30 * 4_096 * 2_048 * 2


@pytest.mark.parametrize(
    ("text", "count", "name", "gib"),
    [
        ("8xH100", 8, "H100", 79.2), ("h200", 1, "H200", 139.8), ("2 x RTX 4090", 2, "RTX4090", 23.5),
        ("4090", 1, "RTX4090", 23.5), ("4x24GB", 4, "24GB", 23.52), ("2x80GiB", 2, "80GiB", 80.0),
        ("NVIDIA A100-80GB", 1, "A100", 79.2), ("1xmi300x", 1, "MI300X", 191.7),
    ],
)  # fmt: skip
def test_devices_are_read(text, count, name, gib):
    found, device = parse_devices(text)
    assert (found, device.name, device.memory_gib) == (count, name, pytest.approx(gib))


@pytest.mark.parametrize("text", ["8xFOO", "", "0xH100", "2xcpu", "x", "4x0GB"])
def test_odd_devices_are_refused_in_words(text):
    with pytest.raises(UnknownDevice, match="--gpus"):
        parse_devices(text)


def test_a_mistyped_device_is_told_its_nearest():
    with pytest.raises(UnknownDevice, match=r"did you mean H100\?"):
        parse_devices("8xH10")


def test_a_processor_is_offered_a_cheaper_method_and_no_more_devices():
    small = replace(DEVICES["h100"], name="cpu", memory_gib=24.0)
    with pytest.raises(NothingFits, match=r"does not fit this machine .*: LoRA does \("):
        choose(needs(other_methods=(lambda: needs("lora"),)), 1, small)
    with pytest.raises(NothingFits, match="no cheaper method and no shorter row does either"):
        choose(needs(billions=80.0), 1, small)


def test_gradients_that_outweigh_what_blocks_keep_are_not_added_to_it():
    @dataclass(frozen=True)
    class Small:
        saved: int = 50_000_000

        def beyond_gradients(self, layers):
            return 40 * self.saved

        def peak(self, layers, accumulating):
            return 40 * self.saved if accumulating else 3_000_000_000  # reached when the last gradients are made

    one_step = needs(billions=0.7, per_step=4_096, trace=lambda tokens, checkpointing, tp: Small())
    memory = memory_of(one_step, Setup(MeshSizes(), 4_096, "none"), H100)
    assert memory.saved + memory.at_work + memory.gradients == 3_000_000_000


def test_the_heap_of_a_cpu_holds_more_than_the_activations_that_live():
    _, cpu = parse_devices("cpu")
    setup = Setup(MeshSizes(), 4_096, "none")
    memory, on_gpu = (memory_of(needs("lora"), setup, device) for device in (cpu, H100))
    assert memory.spare == pytest.approx(0.85 * (memory.saved + memory.at_work)) and memory.saved == on_gpu.saved
    assert on_gpu.spare == pytest.approx(0.05 * (on_gpu.gradients + on_gpu.saved + on_gpu.at_work))


def test_answers_that_are_sampled_meanwhile_and_float32_weights_take_memory():
    setup = Setup(MeshSizes(), 4_096, "none")
    alone = memory_of(needs("lora"), setup, H100)
    more = alone.saved + alone.at_work + alone.gradients + 5 * GIB
    sampled = memory_of(replace(needs("lora"), sampling=more), setup, H100)
    assert sampled.total - alone.total == pytest.approx(1.05 * 5 * GIB)
    assert memory_of(replace(needs("lora"), sampling=1.0), setup, H100) == alone
    exact = memory_of(replace(needs("lora"), frozen_bytes=4.0), setup, H100)
    assert exact.weights - alone.weights == pytest.approx(2 * needs("lora").counts.all)


def test_a_head_that_is_no_linear_layer_is_refused_with_a_sentence():
    model = SimpleNamespace(get_output_embeddings=lambda: None, config=SimpleNamespace(model_type="odd"))
    with pytest.raises(ModelError, match="the head of a odd is not a linear layer"):
        head_of(model)
