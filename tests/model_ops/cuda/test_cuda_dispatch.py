"""What CUDA's operators are given, without a device: each is replaced where torch dispatches it, and its arguments are looked at."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from model_ops.drafting.lookup import LookupDrafter
from model_ops.drafting.ngram import NgramIndex
from model_ops.models import attention
from model_ops.models.attention import packed_attention
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
