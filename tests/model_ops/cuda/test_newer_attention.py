"""cuDNN's attention and FlashAttention-3 without a device: when they are taken, what they are given, and why they are left out."""

import warnings

import pytest
import torch
from torch.overrides import TorchFunctionMode

from model_ops.models import attention, cudnn_attention
from model_ops.models.attention import packed_attention
from model_ops.tensors import varlen_kernel
from tests.model_ops.flash_by_definition import FlashByDefinition

CPU = torch.device("cpu")


class CudnnByDefinition(TorchFunctionMode):
    """torch's fused attention, computed by its definition, and what it was asked for. factor: of a wrong output."""

    def __init__(self, factor=1.0):
        super().__init__()
        self.factor, self.calls = factor, []

    def __torch_function__(self, function, types, given=(), named=None):
        if function is not torch.nn.functional.scaled_dot_product_attention:
            return function(*given, **(named or {}))
        backends = torch.backends.cuda
        self.calls.append(
            {
                "shapes": [tuple(each.shape) for each in given],
                "cudnn only": backends.cudnn_sdp_enabled()
                and not (backends.flash_sdp_enabled() or backends.mem_efficient_sdp_enabled() or backends.math_sdp_enabled()),
                **named,
            }
        )
        query, key, value = given
        group = query.shape[1] // key.shape[1]
        key, value = (each.repeat_interleave(group, 1) for each in (key, value))
        scores = (query @ key.transpose(2, 3)).float() * named["scale"]
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        return self.factor * (scores.masked_fill(hidden, -torch.inf).softmax(-1).to(value.dtype) @ value)


@pytest.fixture
def on_hopper(monkeypatch):
    """The path of a Hopper device, on which cuDNN suits."""
    monkeypatch.setattr(attention, "takes_varlen_kernel", lambda *_: True)
    monkeypatch.setattr(
        cudnn_attention, "can_use_cudnn_attention", lambda params: not torch.are_deterministic_algorithms_enabled()
    )
    monkeypatch.setattr(cudnn_attention, "cudnn_suits", lambda *_: True)
    monkeypatch.setattr(cudnn_attention, "SHORTEST", 8)
    monkeypatch.setattr(cudnn_attention, "_shapes", set())
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)


def row(lengths, **options):
    """(output, calls of cuDNN, calls of flash attention), of 4 heads that share 2."""
    generator = torch.Generator().manual_seed(0)
    streams = [torch.randn(1, heads, sum(lengths), 16, generator=generator).requires_grad_() for heads in (4, 2, 2)]
    with FlashByDefinition() as flash, CudnnByDefinition() as cudnn:
        output, _ = packed_attention(torch.nn.Module(), *streams, scaling=0.3, document_lengths=lengths, **options)
        gradients = torch.autograd.grad(output.square().sum(), streams)
    return [output, *gradients], cudnn.calls, flash.calls


@pytest.mark.parametrize("lengths", [[12, 12, 12], [40]])
def test_a_row_of_documents_of_one_length_is_one_call_of_cudnn(on_hopper, monkeypatch, lengths):
    found, (call,), flash = row(lengths)
    shapes = [(len(lengths), heads, lengths[0], 16) for heads in (4, 2, 2)]
    assert call == {"shapes": shapes, "cudnn only": True, "is_causal": True, "scale": 0.3, "enable_gqa": True}
    assert not flash
    monkeypatch.setattr(cudnn_attention, "cudnn_suits", lambda *_: False)
    wanted, cudnn, flash = row(lengths)
    assert not cudnn and len(flash) == 2
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("lengths", "options"),
    [
        ([12, 13], {}),
        ([7, 7], {}),
        ([12, 12], {"sliding_window": 5}),
        ([12, 12], {"s_aux": torch.zeros(4)}),
        ([12, 12, 3], {"document_prefixes": [(0, 0), (0, 0), (0, 12)]}),
    ],
)
def test_other_rows_are_left_to_flash_attention(on_hopper, lengths, options):
    _, cudnn, flash = row(lengths, **options)
    assert not cudnn and len(flash) == 2


def test_a_window_that_hides_nothing_is_none(on_hopper):
    assert row([12, 12], sliding_window=12)[1]


def test_deterministic_kernels_are_not_cudnn_s(on_hopper):
    torch.use_deterministic_algorithms(True)
    try:
        assert not row([12, 12])[1]
    finally:
        torch.use_deterministic_algorithms(False)


def test_cudnn_plans_for_a_few_shapes_only(on_hopper, monkeypatch):
    monkeypatch.setattr(cudnn_attention, "MOST_SHAPES", 2)
    taken = [bool(row(lengths)[1]) for lengths in ([12], [13], [14], [12], [13, 13])]
    assert taken == [True, True, False, True, False], "two plans, which stay"


@pytest.fixture
def tried(monkeypatch):
    """What `cudnn_suits` asks of a device: Hopper with a recent cuDNN that takes half the time."""
    cudnn_attention.cudnn_suits.cache_clear()
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 91_900)
    monkeypatch.setattr(cudnn_attention, "flash_3_suits", lambda device: False)
    monkeypatch.setattr(cudnn_attention.device_rates, "seconds_of", lambda work: [1.0 if "cudnn" in work.__name__ else 2.0])
    yield monkeypatch
    cudnn_attention.cudnn_suits.cache_clear()


def suits(factor=1.0):
    with FlashByDefinition(), CudnnByDefinition(factor) as cudnn:
        return cudnn_attention.cudnn_suits(CPU, 2, 1, 16), len(cudnn.calls)


def test_cudnn_is_taken_where_it_agrees_and_is_faster(tried):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert suits() == (True, 1)
    cudnn_attention.cudnn_suits.cache_clear()
    tried.setattr(cudnn_attention.device_rates, "seconds_of", lambda work: [2.0 if "cudnn" in work.__name__ else 1.0])
    assert suits() == (False, 1)


def test_cudnn_that_differs_is_left_out_with_one_sentence(tried):
    with pytest.warns(UserWarning, match="^cuDNN's kernels are left out on cpu: they differ") as heard:
        assert suits(1.1) == (False, 1)
    assert len(heard) == 1


@pytest.mark.parametrize("lacking", ["older device", "older cuDNN", "no cuDNN", "FlashAttention-3"])
def test_cudnn_is_not_tried_elsewhere(tried, lacking):
    if lacking == "older device":
        tried.setattr(torch.cuda, "get_device_capability", lambda device: (8, 9))
    elif lacking == "FlashAttention-3":
        tried.setattr(cudnn_attention, "flash_3_suits", lambda device: True)
    else:
        tried.setattr(torch.backends.cudnn, "version", lambda: 91_500 if lacking == "older cuDNN" else None)
    assert suits() == (False, 0)


class Registry:
    """torch's registry of flash attention. scale: of the outputs of FlashAttention-3; an error: what its import raises."""

    def __init__(self, monkeypatch, scale=1.0, error=None, capability=(9, 0), installed=True):
        varlen_kernel.flash_3_suits.cache_clear()
        self.active, self.changes, self.error = None, [], error
        flash = varlen_kernel.varlen_forward

        def forward(*given):
            output, normaliser = flash(*given)
            return (scale * output if self.active else output), normaliser

        monkeypatch.setattr(varlen_kernel, "varlen_forward", forward)
        monkeypatch.setattr(varlen_kernel, "find_spec", {"flash_attn_interface": installed or None}.get)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
        monkeypatch.setattr(varlen_kernel, "activate_flash_attention_impl", self.activate)
        monkeypatch.setattr(varlen_kernel, "current_flash_attention_impl", lambda: self.active)
        monkeypatch.setattr(varlen_kernel, "restore_flash_attention_impl", lambda: self.activate(None))

    def activate(self, name):
        if self.error is not None:
            raise self.error
        self.changes.append(name)
        self.active = name

    def suits(self):
        with FlashByDefinition() as flash:
            return varlen_kernel.flash_3_suits(CPU), len(flash.calls)


@pytest.fixture(autouse=True)
def afterwards():
    yield
    varlen_kernel.flash_3_suits.cache_clear()


def test_flash_attention_3_is_taken_where_it_is_installed_and_agrees(monkeypatch):
    registry = Registry(monkeypatch)
    taken, calls = registry.suits()
    assert (taken, registry.changes) == (True, ["FA3"])
    assert calls == 2 * 9 * 2, "nine samples, forward and backward, of both"
    assert registry.suits() == (True, 0)


def test_flash_attention_3_that_differs_is_left_out_with_one_sentence(monkeypatch):
    registry = Registry(monkeypatch, scale=1.1)
    with pytest.warns(UserWarning, match="^FlashAttention-3's kernels are left out on cpu: they differ") as heard:
        assert not registry.suits()[0]
    assert registry.changes == ["FA3", None] and registry.active is None and len(heard) == 1


def test_a_package_that_does_not_load_is_left_out_with_one_sentence(monkeypatch):
    registry = Registry(monkeypatch, error=ImportError("libcudart.so.12: cannot open shared object file"))
    with pytest.warns(
        UserWarning, match="^FlashAttention-3's kernels are left out on cpu: ImportError: libcudart.so.12"
    ) as heard:
        assert not registry.suits()[0]
    assert not registry.changes and len(heard) == 1


@pytest.mark.parametrize("options", [{"installed": False}, {"capability": (8, 0)}, {"capability": (10, 0)}])
def test_other_devices_keep_flash_attention_2(monkeypatch, options):
    registry = Registry(monkeypatch, **options)
    assert registry.suits() == (False, 0) and not registry.changes


@pytest.mark.parametrize(("active", "is_third"), [("FA3", True), ("FA4", False)])
def test_what_the_user_activated_stays(monkeypatch, active, is_third):
    registry = Registry(monkeypatch)
    registry.active = active
    assert registry.suits() == (is_third, 0) and not registry.changes


def test_the_kernel_s_choice_is_made_before_its_first_call(monkeypatch):
    asked = []
    monkeypatch.setattr(varlen_kernel, "flash_3_suits", asked.append)
    monkeypatch.setattr(varlen_kernel, "can_use_flash_attention", lambda params: True)
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    streams = [torch.zeros(4, 2, 64, dtype=torch.bfloat16) for _ in range(3)]
    assert varlen_kernel.takes_varlen_kernel(*streams) and asked == [CPU]
    assert not varlen_kernel.takes_varlen_kernel(*(stream[..., :12] for stream in streams)) and len(asked) == 1


@pytest.mark.parametrize(("active", "dropout", "flash"), [("FA3", 0.5, False), ("FA3", 0.0, True), (None, 0.5, True)])
def test_dropout_passes_by_flash_attention_3(monkeypatch, active, dropout, flash):
    seen = []

    def attend(*given, **named):
        seen.append(torch.backends.cuda.flash_sdp_enabled())
        return given[0]

    monkeypatch.setattr(attention.F, "scaled_dot_product_attention", attend)
    monkeypatch.setattr(attention, "current_flash_attention_impl", lambda: active)
    streams = [torch.randn(1, 2, 700, 16) for _ in range(3)]
    packed_attention(torch.nn.Module(), *streams, dropout=dropout)
    assert seen == [flash]


@pytest.mark.gpu
@pytest.mark.parametrize("lengths", [[1_027, 1_027], [4_096]])
def test_on_cuda_a_row_of_one_length_is_the_cpu_s(lengths):
    """By cuDNN where it suits the device, else by flash attention."""
    generator = torch.Generator().manual_seed(0)
    streams = [torch.randn(1, heads, sum(lengths), 128, generator=generator) for heads in (4, 2, 2)]
    found = []
    for device, dtype in (("cpu", torch.float32), ("cuda", torch.bfloat16)):
        leaves = [stream.to(device, dtype).requires_grad_() for stream in streams]
        output, _ = packed_attention(torch.nn.Module(), *leaves, document_lengths=lengths)
        found.append([output, *torch.autograd.grad(output.float().square().sum(), leaves)])
    for one, other in zip(*found, strict=True):
        assert (one - other.float().cpu()).norm() < 0.03 * one.norm()
