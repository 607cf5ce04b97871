"""Pairs of answers as one document: what is shared, what is left out, and the same log-probabilities as two documents."""

import json
import math

import architectures
import numpy as np
import pytest
import torch
from judge_server import completion, judge_server
from preference_rows import asked, pair, said, verdict, write_preferences
from tiny_models import write_target

from model_ops.documents.documents import Branch, Document, to_batch
from model_ops.evaluation import EvaluateSettings, find
from model_ops.evaluation import preference_change as module
from model_ops.evaluation.preference_change import _share_of_gains, preference_change
from model_ops.jobs.job import Job, ModelError, Progress
from model_ops.losses.linear_cross_entropy import token_nll
from model_ops.models import load_model, load_tokenizer
from model_ops.models.isolation import separate_documents
from model_ops.preferences import read_preferences
from model_ops.preferences.preference_documents import PAIR, answer_masks
from model_ops.rendering import ChatTemplate, Row

SETTINGS = EvaluateSettings(max_new_tokens=6, prompts=12, parents={"preferences": "sft"})


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    root = tmp_path_factory.mktemp("pairs")
    for seed, name in enumerate(("target", "sft")):
        write_target(root / name, layers=2, seed=seed, max_position_embeddings=512)
    pairs = [pair(i) for i in range(14)]
    turned = [{**each, "chosen": each["rejected"], "rejected": each["chosen"]} for each in pairs[::3]]
    write_preferences(root / "preferences", [*turned, *(each for each in pairs if pairs.index(each) % 3)], split="test")
    return root


def job(place, tmp_path, **inputs):
    named = {"preferences": place / "preferences", "target": place / "target", "sft": place / "sft"}
    return Job(operation="evaluate", output=tmp_path, inputs={**named, **inputs})


def log_prob(directory, document, begin, stop):
    """By transformers alone: of the targets of one segment."""
    ids = torch.tensor(document.input_ids[begin:stop].astype(np.int64))[None]
    logs = load_model(directory, attention="sdpa").eval()(ids).logits[0, :-1].double().log_softmax(-1)
    taken = logs.gather(1, ids[0, 1:, None])[:, 0]
    return float(taken.detach()[torch.tensor(document.targets[begin + 1 : stop])].sum())


def test_of_every_pair_the_answer_that_gained_is_found(place, tmp_path):
    found = preference_change(job(place, tmp_path), SETTINGS, Progress())
    documents = read_preferences(
        place / "preferences", "test", load_tokenizer(place / "sft"), 4_096, rows="pairs", shares=False
    ).documents
    gains = {}
    for document in documents:
        cut, whole = document.segments[0].length, len(document)
        sides = [
            [log_prob(place / name, document, begin, stop) for begin, stop in ((0, cut), (cut, whole))]
            for name in ("target", "sft")
        ]
        gains[document.row_id] = sides[0][0] - sides[1][0] - (sides[0][1] - sides[1][1])
    accuracy = find(found.measurements, "preference_accuracy", of="target", against="sft")
    assert accuracy.n == 14 and accuracy.value == pytest.approx(np.mean([gain > 0 for gain in gains.values()]))
    assert 0 < accuracy.value < 1 and accuracy.low <= accuracy.value <= accuracy.high
    lines = [json.loads(line) for line in (tmp_path / "preference_pairs.jsonl").read_text().splitlines()]
    assert [line["change"] for line in lines] == sorted(line["change"] for line in lines) and len(lines) == 10
    assert all(line["change"] == pytest.approx(gains[line["row_id"]], abs=1e-3) for line in lines)
    assert lines[0]["rejected"].startswith("def add_") and lines[0]["reason"] == "edited" and "target" in lines[0]
    assert "set evaluation.tasks.judge" in found.not_measured["win_rate"]


def test_a_model_beside_itself_has_not_moved(place, tmp_path):
    found = preference_change(job(place, tmp_path, sft=place / "target"), SETTINGS, Progress())
    values = {each.what: each.value for each in found.measurements}
    assert values == {"preference_accuracy": 0.5, "length_ratio": 1.0, "divergence_from_parent": pytest.approx(0, abs=1e-6)}


def test_divergence_is_that_of_the_targets_own_samples(place, tmp_path, monkeypatch):
    """With samples that are given, it is the mean over their tokens of the difference of log-probabilities."""
    found = preference_change(job(place, tmp_path), SETTINGS, Progress())
    kl = find(found.measurements, "divergence_from_parent", of="target", against="sft")
    assert kl.value > 0 and kl.low < kl.value < kl.high and kl.unit == "nats per token"
    kept = json.loads((tmp_path / ".work/preference-answers-target-1.json").read_text())["value"]
    nll = [json.loads((tmp_path / f".work/preference-sampled-{role}.json").read_text())["value"] for role in ("target", "sft")]
    tokens = sum(len(each["tokens"]) for each in kept.values())
    assert kl.value == pytest.approx((sum(nll[0].values()) - sum(nll[1].values())) / tokens, rel=1e-6) and kl.n == 12


def test_a_judge_counts_wins(place, tmp_path):
    def first_is_longer(body, number):
        return completion(json.dumps({"better": "A" if number % 2 else "B"}))

    with judge_server(first_is_longer) as (address, seen):
        settings = SETTINGS.model_validate(SETTINGS.model_dump() | {"tasks": {"judge": {"base_url": address, "model": "j"}}})
        found = preference_change(job(place, tmp_path), settings, Progress())
    wins = find(found.measurements, "win_rate", of="target", against="sft")
    assert wins is not None and 0 <= wins.low <= wins.value <= wins.high <= 1 and "win_rate" not in found.not_measured
    assert len(seen) == 24


@pytest.mark.parametrize(("wins", "value"), [([1, 1, 0, -1], 0.625), ([-1, -1], 0.0), ([0, 0], 0.5)])
def test_a_tie_is_half_a_win(wins, value):
    assert module._win_rate(wins)[0] == value


def test_the_interval_of_the_pairs_is_over_sessions():
    gains = [1.0, 1.0, 1.0, -1.0, 1.0, -1.0]
    apart = _share_of_gains(gains, ["a", "b", "c", "d", "e", "f"])
    ends = pytest.approx((max(0, 4 / 6 - 2.571 * (4 / 18 / 5) ** 0.5), 1.0), rel=1e-3)
    assert apart == (pytest.approx(4 / 6), ends, 6)
    many = _share_of_gains(gains * 9, ["a", "b", "c", "d", "e", "f"] * 9)
    assert many == (pytest.approx(4 / 6), ends, 54), "nine times the same pairs say no more"
    assert _share_of_gains(gains, ["a"] * 6) == (pytest.approx(4 / 6), None, 6)


def test_ratio_of_lengths_has_the_interval_of_its_influences():
    """By the delta method, in plain numbers: r = 12 / 9, residuals a - r b."""
    value, (low, high), count = module._ratio(np.array([4.0, 4.0, 4.0]), np.array([2.0, 3.0, 4.0]))
    assert value == pytest.approx(4 / 3) and count == 3 and low < value < high
    residuals = np.array([4 - 4 / 3 * b for b in (2, 3, 4)]) / 9 / (1 - np.array([2, 3, 4]) / 9)
    reach = 4.303 * math.sqrt(2 / 3 * float((residuals**2).sum()))
    assert high - value == pytest.approx(reach, rel=1e-3)


def test_without_pairs_or_preference_model_nothing_is_measured(place, tmp_path):
    write_preferences(tmp_path / "empty", [pair(0, rejected=pair(0)["chosen"])], split="test")
    found = preference_change(job(place, tmp_path / "one", preferences=tmp_path / "empty"), SETTINGS, Progress())
    assert not found.measurements and "no test pair" in found.not_measured["held-out pairs"]
    without = SETTINGS.model_copy(update={"parents": {}})
    assert preference_change(job(place, tmp_path / "two"), without, Progress()) == module.Findings()


def read(folder, tokenizer, rows="both", shares=True, max_length=400, **more):
    return read_preferences(folder, "train", tokenizer, max_length, rows, shares, **more)


def texts(document, tokenizer):
    """What each answer teaches."""
    return [tokenizer.decode(document.input_ids[mask]) for mask in answer_masks(document)]


def test_a_pair_is_one_document_that_holds_the_common_beginning_once(tmp_path, tiny_tokenizer):
    found = read(write_preferences(tmp_path, [pair(7)]), tiny_tokenizer)
    [document], [branch] = found.documents, found.documents[0].branches
    row = Row("", asked(7))
    prompt = ChatTemplate.of(tiny_tokenizer).prompt(row, 2)
    of_trunk = tiny_tokenizer.decode(document.input_ids[: len(document) - branch.length])
    assert of_trunk == prompt + "def add_7(a, b):\n    return a + b\n<|im_end|>"
    end = "<|im_end|>"
    assert texts(document, tiny_tokenizer) == [
        f"def add_7(a, b):\n    return a + b\n{end}",
        f"def add_7(a, b):\n    return a - b * 7, so I think\n{end}",
    ]
    rest = tiny_tokenizer.decode(document.input_ids[-branch.length :])
    assert "def add" not in rest and rest.endswith(f", so I think\n{end}")
    assert not document.targets[-branch.length], "the copied token is no target a second time"
    assert document.input_ids[branch.at] == document.input_ids[-branch.length]
    assert found.verdicts.tolist() == [PAIR] and found.reasons == ["edited"] and np.isnan(found.margins).all()


def test_answers_that_begin_otherwise_branch_at_the_prompt_and_one_may_end_within_the_other(tmp_path, tiny_tokenizer):
    rows = [pair(1, said("yes"), said("no, I cannot")), pair(2, said("def add_2(a, b):"), said("def"))]
    documents = read(write_preferences(tmp_path, rows), tiny_tokenizer).documents
    end = "<|im_end|>"
    assert texts(documents[0], tiny_tokenizer) == [f"yes{end}", f"no, I cannot{end}"]
    assert texts(documents[1], tiny_tokenizer) == [f"def add_2(a, b):{end}", f"def{end}"]
    whole = read(tmp_path, tiny_tokenizer, shares=False).documents
    assert [texts(document, tiny_tokenizer) for document in whole] == [
        texts(document, tiny_tokenizer) for document in documents
    ]
    assert all(document.branches[0].at == 0 for document in whole) and to_batch(whole[:2]).document_prefixes is None


def test_unpaired_answers_keep_verdict_weight_and_confidence(tmp_path, tiny_tokenizer):
    rows = [verdict(0, True, confidence=0.75, weight=2.0), verdict(1, False, confidence=None, weight=0.5)]
    found = read(write_preferences(tmp_path, [pair(5, confidence=0.9, margin=0.5)], rows), tiny_tokenizer)
    assert found.verdicts.tolist() == [PAIR, 1, 0] and found.weights.tolist() == [1.0, 2.0, 0.5]
    assert found.confidence.tolist() == [0.9, 0.75, 1.0] and found.margins[0] == 0.5
    assert texts(found.documents[2], tiny_tokenizer) == ["I cannot do that<|im_end|>"]
    assert [read(tmp_path, tiny_tokenizer, rows=rows).verdicts.tolist() for rows in ("pairs", "unpaired")] == [[PAIR], [1, 0]]
    counts = found.counts
    assert (counts["pairs"], counts["desirable_answers"], counts["undesirable_answers"]) == (1, 1, 1)


def test_what_cannot_be_learnt_is_left_out_by_name(tmp_path, tiny_tokenizer):
    rows = [
        pair(0), pair(1, said("the same"), said("the same")), pair(2, said("long " * 300)),
        pair(3, json.dumps([{"role": "assistant", "content": None}])),
    ]  # fmt: skip
    (tmp_path / "rendering.json").write_text('{"most_unrenderable": 0.5}')
    found = read(write_preferences(tmp_path, rows), tiny_tokenizer)
    counts = found.counts
    assert found.documents.row_ids == ["pair-0"] and counts["rows"] == 4
    assert (counts["equal_answers"], counts["too_long"], counts["unrenderable_rows"]) == (1, 1, 1)
    longest = len(found.documents[0])
    assert read(tmp_path, tiny_tokenizer, max_length=longest - 1).counts["too_long"] == 2
    path = longest - found.documents[0].branches[0].length
    assert read(tmp_path, tiny_tokenizer, positions=path - 1).counts["too_long"] == 2


def test_a_template_that_renders_the_prompts_of_a_pair_apart_is_counted(tmp_path, tiny_tokenizer, monkeypatch):
    rendered = ChatTemplate.prompt
    monkeypatch.setattr(
        ChatTemplate,
        "prompt",
        lambda self, row, before: ("no" if "I think" in str(row.messages) else "") + rendered(self, row, before),
    )
    monkeypatch.setattr(
        ChatTemplate,
        "through",
        lambda self, row, last, answer=None: (
            ChatTemplate.prompt(self, row, last) + (answer or row.messages[last])["content"] + "<|im_end|>"
        ),
    )
    assert read(write_preferences(tmp_path, [pair(1)]), tiny_tokenizer).counts["other_prompt"] == 1


def test_a_file_that_is_missing_or_lacks_a_column_is_one_sentence(tmp_path, tiny_tokenizer):
    with pytest.raises(ModelError, match=r"there is no unpaired_train\.parquet in"):
        read(write_preferences(tmp_path, [pair(1)]), tiny_tokenizer, rows="unpaired")
    bare = {key: value for key, value in pair(1).items() if key != "rejected"}
    with pytest.raises(ModelError, match="has no column rejected"):
        read(write_preferences(tmp_path, [bare]), tiny_tokenizer)
    with pytest.raises(ModelError, match="request or rejected of row pair-1 are not JSON text"):
        read(write_preferences(tmp_path, [pair(1, rejected="[{")]), tiny_tokenizer)


def random_pair(row, shares, seed=0, beginning=40, common=5):
    generator = np.random.default_rng(seed)
    prompt, both, one, other = (generator.integers(3, 61, n, dtype=np.int32) for n in (beginning, common, 9, 14))
    chosen, rejected = np.concatenate([prompt, both, one]), np.concatenate([prompt, both, other])
    at = beginning + common - 1 if shares else 0
    targets = [np.arange(len(ids)) >= beginning for ids in (chosen, rejected)]
    rest = targets[1][at:].copy()
    rest[0] = False
    together = Document(
        row,
        np.concatenate([chosen, rejected[at:]]),
        np.concatenate([targets[0], rest]),
        branches=(Branch(at, len(rejected) - at),),
    )
    return together, [Document(row, chosen, targets[0]), Document(row, rejected, targets[1])]


def sums(model, document):
    """Log-probability of each answer of a document."""
    batch = to_batch([document])
    nll, kept = token_nll(model, batch)
    found = torch.zeros(batch.tokens, dtype=torch.float64).index_put_((kept,), -nll.double())
    return [float(found[:-1][torch.from_numpy(mask[1:])].sum()) for mask in answer_masks(document)]


@pytest.mark.parametrize("name", ["qwen3", "gemma2", "gpt_oss"])
def test_a_document_of_two_answers_has_the_log_probabilities_of_two_documents(name):
    model = architectures.build(name).requires_grad_(False)
    together, separate = random_pair("a", shares=True)
    assert len(together) < 0.7 * sum(map(len, separate))
    wanted = [sums(model, document)[0] for document in separate]
    assert sums(model, together) == pytest.approx(wanted, abs=1e-5)
    assert sums(model, random_pair("a", shares=False)[0]) == pytest.approx(wanted, abs=1e-5)


def test_a_model_with_a_state_takes_pairs_of_whole_contexts():
    model = architectures.build("lfm2").requires_grad_(False)
    separate_documents(model)
    whole, separate = random_pair("a", shares=False)
    assert sums(model, whole) == pytest.approx([sums(model, document)[0] for document in separate], abs=1e-5)
