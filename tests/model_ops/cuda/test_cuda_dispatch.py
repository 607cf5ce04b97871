"""What CUDA's operators are given, without a device: each is replaced where torch dispatches it, and its arguments are looked at."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from model_ops.calibration import walk
from model_ops.calibration.walk import _held_on
from model_ops.drafting.drafts import NgramIndex
from model_ops.drafting.measure_acceptance import LookupDrafter
from model_ops.machine.process import free_device_memory
from model_ops.models import attention
from model_ops.models.attention import packed_attention
from model_ops.quantization import fp8_linear
from model_ops.quantization.fp8_linear import Fp8Linear, fp8_product, fp8_product_scaled, quantize_fp8
from model_ops.quantization.schemes import FP8
from model_ops.speculators.backbone import draft_attention as drafts
from model_ops.speculators.backbone.draft_attention import WindowLayout, draft_attention
from tests.model_ops.flash_by_definition import OPERATORS


class Flash(TorchDispatchMode):
    """Keeps the arguments of flash attention's operators, by the names that torch declares."""

    def __init__(self):
        super().__init__()
        self.forward, self.backward = [], []

    def __torch_dispatch__(self, operator, types, given=(), named=None):
        if operator not in OPERATORS:
            return operator(*given, **(named or {}))
        names = [argument.name for argument in operator._schema.arguments]
        calls = self.forward if operator is torch.ops.aten._flash_attention_forward.default else self.backward
        calls.append(dict(zip(names, given, strict=False)) | (named or {}))
        return OPERATORS[operator](*given, **(named or {}))


def streams(tokens, heads=4, kv_heads=2, head_dim=16):
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(1, count, tokens, head_dim, generator=generator).requires_grad_() for count in (heads, kv_heads, kv_heads)
    ]


def told(call):
    """(starts of queries and keys, longest ones, dropout, causal, scale, window) of a call."""
    starts = [call[name].tolist() for name in ("cum_seq_q", "cum_seq_k")]
    return (*starts, call["max_q"], call["max_k"], call["dropout_p"], call["is_causal"], call["scale"], window_of(call))


def window_of(call):
    return call["window_size_left"], call["window_size_right"]


@pytest.mark.parametrize(
    ("window", "causal", "sides"),
    [(None, True, (-1, 0)), (1, False, (0, 0)), (7, False, (6, 0)), (40, True, (-1, 0)), (90, True, (-1, 0))],
)
def test_a_packed_row_is_one_call_with_its_documents_window_and_scale(monkeypatch, window, causal, sides):
    """A window of n positions holds the query's own: n - 1 lie before it, none after it. Where no document is longer, there is none."""
    monkeypatch.setattr(attention, "takes_varlen_kernel", lambda *_: True)
    given = streams(64)
    with Flash() as flash:
        output, _ = packed_attention(
            torch.nn.Module(), *given, scaling=0.3, sliding_window=window, document_lengths=[5, 40, 1, 18]
        )
        torch.autograd.grad(output.sum(), given)
    starts = [0, 5, 45, 46, 64]
    assert [told(call) for call in (*flash.forward, *flash.backward)] == [(starts, starts, 40, 40, 0.0, causal, 0.3, sides)] * 2
    (call,) = flash.forward
    assert [call[name].shape for name in ("query", "key", "value")] == [(64, 4, 16), (64, 2, 16), (64, 2, 16)]
    assert torch.equal(call["query"], given[0][0].transpose(0, 1)) and torch.equal(call["value"], given[2][0].transpose(0, 1))
    (call,) = flash.backward
    assert torch.equal(call["query"], given[0][0].transpose(0, 1)) and call["logsumexp"].shape == (4, 64)
    assert call["grad_out"].is_contiguous()


def test_the_scale_of_a_head_is_its_width_to_the_minus_a_half(monkeypatch):
    monkeypatch.setattr(attention, "takes_varlen_kernel", lambda *_: True)
    with Flash() as flash:
        packed_attention(torch.nn.Module(), *streams(8, head_dim=64))
    assert flash.forward[0]["scale"] == 1 / 8


@pytest.mark.parametrize("with_sinks", [False, True])
def test_answers_that_continue_one_prompt_are_paths_of_the_row(monkeypatch, with_sinks):
    """Two answers of 3 and 4 tokens continue the first 5 tokens: the kernel reads prompt and answer end to end, for each."""
    monkeypatch.setattr(attention, "takes_varlen_kernel", lambda *_: True)
    given = streams(12)
    with Flash() as flash:
        packed_attention(
            torch.nn.Module(),
            *given,
            scaling=0.5,
            s_aux=torch.zeros(4) if with_sinks else None,
            document_lengths=[5, 3, 4],
            document_prefixes=[(0, 0), (0, 5), (0, 5)],
        )
    (call,) = flash.forward
    starts = [0, 5, 13, 22]
    assert told(call) == (starts, starts, 9, 9, 0.0, True, 0.5, (-1, 0))
    path = [*range(5), *range(5), 5, 6, 7, *range(5), 8, 9, 10, 11]
    assert torch.equal(call["key"], given[1][0].transpose(0, 1)[path])


def test_a_drafter_s_windows_are_the_last_queries_of_their_documents(monkeypatch):
    monkeypatch.setattr(drafts, "takes_varlen_kernel", lambda *_: True)
    layout = WindowLayout.of([6, 0, 11], [5, 9, 1], torch.device("cpu"))
    query, keys, values = (torch.randn(rows, heads, 64).requires_grad_() for rows, heads in ((15, 4), (32, 2), (32, 2)))
    own = [torch.randn(15, 2, 64) for _ in range(2)]
    for later in ([], [tuple(own)]):
        with Flash() as flash:
            output = draft_attention(query, keys, values, later, layout)
            torch.autograd.grad(output.sum(), [query, keys, values])
        found = [told(call) for call in (*flash.forward, *flash.backward)]
        assert found == [([0, 5, 14, 15], [0, 11, 20, 32], 9, 12, 0.0, True, 1 / 8, (-1, 0))] * 2


def test_a_lookup_drafter_proposes_on_the_device_of_the_text():
    drafter = LookupDrafter(NgramIndex)
    drafter.begin([[1, 2, 3, 1, 2]], torch.zeros(1, dtype=torch.int64))
    assert drafter.propose(2, 0.0).tokens.device.type == "cpu"
    drafter.device = torch.device("meta")
    proposal = drafter.propose(2, 0.0)
    assert proposal.tokens.device.type == proposal.valid.device.type == "meta"


class ScaledByDefinition(TorchDispatchMode):
    """torch._scaled_mm with a scale for each row and column, as cuBLAS and CUTLASS take it."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def __torch_dispatch__(self, operator, types, given=(), named=None):
        if operator is not torch.ops.aten._scaled_mm.default:
            return operator(*given, **(named or {}))
        self.calls += 1
        one, other, of_rows, of_columns, *_, out_dtype = given
        assert one.is_contiguous() and other.t().is_contiguous(), "the kernel takes rows by columns"
        assert one.dtype == other.dtype == torch.float8_e4m3fn and out_dtype == torch.bfloat16
        assert of_rows.shape == (len(one), 1) and of_columns.shape == (1, other.shape[1])
        assert of_rows.dtype == of_columns.dtype == torch.float32 and of_rows.is_contiguous() and of_columns.is_contiguous()
        assert not any(size % 16 for size in other.shape)
        return ((one.float() * of_rows) @ (other.float() * of_columns)).to(out_dtype)


@pytest.mark.parametrize("rows", [1, 7])
def test_fp8_scales_are_those_of_rows_and_columns(rows):
    torch.manual_seed(0)
    (left, left_scale), (right, right_scale) = quantize_fp8(torch.randn(rows, 64)), quantize_fp8(torch.randn(32, 64) * 9)
    wanted = fp8_product(left, right, left_scale, right_scale, torch.float32)
    with ScaledByDefinition() as scaled:
        found = fp8_product_scaled(left, right, left_scale, right_scale, torch.float32)
    assert scaled.calls == 1 and found.dtype == torch.float32
    torch.testing.assert_close(found, wanted, rtol=8e-3, atol=1e-3)


def test_a_fused_fp8_layer_gives_the_kernel_its_own_scales(monkeypatch):
    torch.manual_seed(0)
    layers = []
    for out in (16, 48):
        layer = Fp8Linear(32, out, False, torch.float32, FP8.stored(out, 32))
        layer.hold(Fp8Linear.encode(torch.randn(out, 32) * out))
        layers.append(layer)
    x = torch.randn(3, 5, 32)
    wanted = torch.cat([layer(x) for layer in layers], -1)
    whole = Fp8Linear.fused(layers)
    monkeypatch.setattr(fp8_linear, "fp8_product", fp8_product_scaled)
    with ScaledByDefinition():
        torch.testing.assert_close(whole(x), wanted, rtol=8e-3, atol=0.05)


def test_memory_that_torch_keeps_of_freed_tensors_counts_as_free(monkeypatch):
    """After a training step torch holds nearly all of a device, and rollouts decode there."""
    for name, found in (("mem_get_info", (5, 80)), ("memory_reserved", 70), ("memory_allocated", 40)):
        monkeypatch.setattr(torch.cuda, name, lambda device, found=found: found)
    assert free_device_memory(torch.device("cuda")) == 35


@pytest.mark.parametrize(("free", "place"), [(1 << 30, "cuda"), (1 << 10, "cpu")])
def test_hidden_states_of_a_calibration_stay_on_a_device_where_they_fit(monkeypatch, free, place):
    class Model:
        device = torch.device("cuda")

        class module:
            config = type("Config", (), {"hidden_size": 64})
            dtype = torch.float32

    monkeypatch.setattr(walk, "free_device_memory", lambda device: free)
    batches = [type("Some", (), {"tokens": 100})() for _ in range(3)]
    assert _held_on(Model(), batches).type == place
    Model.device = torch.device("cpu")
    assert _held_on(Model(), batches).type == "cpu"
