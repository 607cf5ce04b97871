"""Decoding with recorded forwards, as on CUDA, with a stand-in that computes again into the same tensors: the same text, few
recordings, and nobody asks for the longest row."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from model_ops.decoding import decode_loop, incremental
from model_ops.decoding.decode_loop import decode
from model_ops.decoding.ragged_cache import RaggedCache
from model_ops.decoding.runner import new_runner
from model_ops.drafting.drafts import NgramIndex
from model_ops.drafting.measure_acceptance import LookupDrafter
from model_ops.models.tiny_families import tiny_model

PROMPTS = [[5, 9, 3, 17, 5, 9, 3], [4, 4, 4], [30, 2, 8, 41, 7]]


class Recorded:
    """Results of a call are overwritten by the next one, as those of a CUDA graph."""

    made = 0

    def __init__(self, work, ids, positions, held):
        type(self).made += 1
        self.work, self.ids, self.positions, self.held = work, ids.clone(), positions.clone(), held
        self.results = [None if each is None else each.clone() for each in work(self.ids, self.positions)]
        self.calls = 0

    def __call__(self, ids, positions):
        self.calls += 1
        assert ids.shape == self.ids.shape and positions.shape == self.positions.shape
        for held, found in zip(self.results, self.work(ids, positions), strict=True):
            if held is not None:
                held.copy_(found)
        return self.results


@pytest.fixture
def recorded(monkeypatch):
    monkeypatch.setattr(incremental, "ForwardGraph", Recorded)
    monkeypatch.setattr(Recorded, "made", 0)
    return Recorded


def texts(runner, drafter, **changes):
    found = decode(
        runner,
        PROMPTS,
        ["a", "b", "c"],
        **{"eos_ids": {7, 20, 33}, "temperature": 1.0, "max_new_tokens": 40, "drafter": drafter, **changes},
        num_speculative_tokens=2 if drafter else 0,
    )
    return [answer.tokens for answer in found]


@pytest.mark.parametrize("drafts", [False, True])
@pytest.mark.parametrize("span", [4, 256])
def test_the_text_is_that_of_plain_forwards(recorded, monkeypatch, drafts, span):
    monkeypatch.setattr(incremental, "SPAN", span)
    runner = new_runner(tiny_model("llama", attention="sdpa"))
    drafter = LookupDrafter(NgramIndex) if drafts else None
    wanted = texts(runner, drafter)
    runner.graphed = True
    assert texts(runner, drafter) == wanted and recorded.made


def test_a_cache_is_used_again_by_a_batch_of_as_many_rows_with_its_graphs(recorded):
    runner = new_runner(tiny_model("llama", attention="sdpa"))
    runner.graphed = True
    options = {"eos_ids": (), "max_new_tokens": 12}
    first = texts(runner, None, **options)
    made, cache = recorded.made, runner._spare
    assert texts(runner, None, **options) == first
    assert runner._spare is cache and recorded.made == made and all(len(text) == 12 for text in first)
    assert runner.new_cache(2) is not cache, "another number of rows"


def test_where_nothing_can_be_recorded_the_text_is_the_same_and_a_warning_says_so(monkeypatch):
    runner = new_runner(tiny_model("llama", attention="sdpa"))
    wanted = texts(runner, None)

    def refuse(*_):
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(incremental, "ForwardGraph", refuse)
    runner.graphed = True
    with pytest.warns(UserWarning, match="decoding is not recorded on cpu: operation not permitted"):
        assert texts(runner, None) == wanted
    assert not runner.graphed


def test_a_batch_s_room_is_held_only_where_half_of_the_free_memory_suffices():
    for share, capacity in ((0.4, 0), (0.6, 100)):
        cache = RaggedCache(3, 2, 1, 4, torch.float32)
        needed = 2 * 3 * 2 * 1 * 4 * 4 * 100
        cache.hold_room(100, int(needed / 0.5 * (share + 0.5)))
        assert cache.capacity == capacity


def test_no_round_asks_the_cache_for_its_longest_row(monkeypatch):
    asked, most = [], RaggedCache.most_tokens
    monkeypatch.setattr(RaggedCache, "most_tokens", lambda self: asked.append(self._most is None) or most(self))
    monkeypatch.setattr(decode_loop, "COMPACT_BELOW", {"cpu": 0.0})
    runner = new_runner(tiny_model("llama", attention="sdpa"))
    texts(runner, LookupDrafter(NgramIndex))
    assert len(asked) > 5 and not any(asked)


def test_a_graph_is_forgotten_with_the_tensors_that_it_was_recorded_over():
    cache = RaggedCache(1, 2, 1, 4, torch.float32)
    cache.reserve(4)
    cache.graphs["any"] = object()
    cache.reserve(3)
    assert cache.graphs, "nothing moved"
    cache.reserve(9)
    assert not cache.graphs
    cache.graphs["any"] = object()
    cache.keep(torch.tensor([1]))
    assert not cache.graphs


@pytest.mark.parametrize("drafts", [False, True])
def test_log_probabilities_are_computed_before_a_round_waits_for_the_device(monkeypatch, drafts):
    """What is read after the first transfer of a round is there already: nothing is computed between its two reads."""
    happened = []

    class Sees(TorchDispatchMode):
        def __torch_dispatch__(self, operator, types, given=(), named=None):
            happened.append("log" if operator is torch.ops.aten.logsumexp.default else "other")
            return operator(*given, **(named or {}))

    tolist = torch.Tensor.tolist
    monkeypatch.setattr(torch.Tensor, "tolist", lambda tensor: (happened.append("read"), tolist(tensor))[1])
    runner = new_runner(tiny_model("llama", attention="sdpa"))
    with Sees():
        texts(runner, LookupDrafter(NgramIndex) if drafts else None, log_probs=True, max_new_tokens=6, eos_ids=set())
    logs = [place for place, what in enumerate(happened) if what == "log"]
    assert len(logs) > 3
    for place in logs:
        first = happened.index("read", place)
        assert "read" in happened[first + 1 : first + 3] and "log" not in happened[first : first + 3]
