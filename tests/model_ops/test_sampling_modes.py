"""Acceptance is measured as each request was sampled; lookups have the shortest draft length that is nearly best."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from tiny_models import write_dataset, write_target

from model_ops.completions.served_answers import COLUMNS
from model_ops.decoding.penalties import Penalties
from model_ops.decoding.prompts import Prompt, read_prompts
from model_ops.decoding.sampling import Truncation
from model_ops.evaluation import report as evaluate
from model_ops.evaluation.acceptances import LENGTHS, search
from model_ops.evaluation.served_forms import modes
from model_ops.evaluation.token_scores import bfloat16_step, difference_at, first_differences, scored_model, tie_bound
from model_ops.jobs import Job, Progress
from model_ops.models.model_directory import load_model, load_tokenizer


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    directory = tmp_path_factory.mktemp("modes") / "target"
    write_target(directory)
    return directory


def write_served(path, params):
    """How answers were served: interaction id -> parameters."""
    path.mkdir(exist_ok=True)
    rows = [{"interaction_id": name, "params": json.dumps(said)} for name, said in params.items()]
    types = {"prompt_token_ids": pa.list_(pa.int32()), "completion_token_ids": pa.list_(pa.int32())}
    schema = pa.schema([(name, types.get(name, pa.string())) for name in COLUMNS])
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), path / "served.parquet")
    return path


def prompts(*names):
    return [Prompt(name, name, "", [5, 6], interaction_id=name) for name in names]


def test_each_prompt_keeps_the_parameters_of_its_request(target, tmp_path):
    served = write_served(
        tmp_path / "served",
        {
            "a": {"temperature": 0.2, "top_p": 0.9, "stop": ["x"]},
            "b": {"temperature": 0, "top_k": 3},
            "c": {"temperature": 0.2, "top_p": 0.9, "max_tokens": 4},
            "d": {"repetition_penalty": 1.2, "logit_bias": {"5": 1}},
        },
    )
    *fixed, logged = modes(target, served, prompts("a", "b", "c", "d", "unknown"), [0.0, 1.0])
    assert [mode.label for mode in fixed] == ["greedy", "temperature 1"] and logged.label == "as logged"
    found = {tuple(prompt.row_id for prompt in group): sampling for sampling, group in logged.groups}
    assert set(found) == {("a", "c"), ("b",), ("d",), ("unknown",)}
    assert (found["a", "c"].temperature, found["a", "c"].truncation) == (0.2, Truncation(top_p=0.9))
    assert found["b",].temperature == 0 and found["b",].truncation == Truncation()  # truncation does nothing to greedy answers
    assert found["d",].penalties == Penalties(repetition=1.2)
    assert logged.left_out == {"logit_bias": 1, "stop": 1} and logged.same_as is None
    assert modes(target, None, prompts("a", "b"), [0.0, 1.0])[-1].same_as == "temperature 1"


def test_acceptance_as_logged_differs_from_a_fixed_temperature(target, tmp_path):
    write_dataset(tmp_path / "dataset", rows=6)
    table = pq.read_table(tmp_path / "dataset/test.parquet")
    answers = [sum(message["role"] == "assistant" for message in json.loads(text)) for text in table["messages"].to_pylist()]
    ids = [[f"{row}-{turn}" for turn in range(count)] for row, count in zip(table["row_id"].to_pylist(), answers, strict=True)]
    pq.write_table(table.append_column("interaction_ids", pa.array(ids)), tmp_path / "dataset/test.parquet")
    read = read_prompts(tmp_path / "dataset", "test", load_tokenizer(target))
    assert [prompt.interaction_id for prompt in read] == [names[-1] for names in ids]
    served = write_served(
        tmp_path / "served",
        {
            prompt.interaction_id: {"temperature": 0.0 if number % 2 else 0.5, "frequency_penalty": 1.0}
            for number, prompt in enumerate(read)
        },
    )
    evaluate.run(
        Job(
            operation="evaluate",
            output=tmp_path / "out",
            inputs={"target": target, "dataset": tmp_path / "dataset", "served": served},
            settings={"max_new_tokens": 12, "temperatures": [1.0], "num_speculative_tokens": 2},
        ),
        Progress(),
    )
    rows = pq.read_table(tmp_path / "out/acceptance.parquet").to_pylist()
    logged = [row for row in rows if row["sampling"] == "as logged" and row["drafter"] == "none"]
    assert sorted(row["temperature"] for row in logged) == [0.0, 0.0, 0.0, 0.5, 0.5, 0.5]
    report = json.loads((tmp_path / "out/report.json").read_text())
    assert set(report["lookups"]) == {"ngram", "suffix"} and report["parameters_left_out"] == {}


def test_the_shortest_length_that_is_nearly_best():
    repeated = [3, 4, 5, 6, 7, 8] * 6
    found = search([], [(repeated, [*repeated, 9])], 3)
    assert found["ngram"].num_speculative_tokens > 6 and found["ngram"].num_speculative_tokens in LENGTHS
    never = search([], [([3, 4, 5], [6, 7, 8, 9, 10])], 3)
    assert never["ngram"].num_speculative_tokens == 1 and never["ngram"].tau == 1.0
    assert search([], [], 3)["suffix"].num_speculative_tokens == 3


@pytest.mark.parametrize("value", [1.0, 1.9, 2.0, 15.99, 16.0, 31.0, -17.3, 0.3])
def test_the_step_is_that_of_bfloat16(value):
    own = torch.tensor(value, dtype=torch.bfloat16).double().abs()
    above = torch.nextafter(own.to(torch.bfloat16), torch.tensor(torch.inf, dtype=torch.bfloat16)).double()
    assert bfloat16_step(float(own)) == float(above - own)


def test_the_bound_is_of_the_larger_logit():
    assert tie_bound(17.0, -3.0) == tie_bound(-3.0, 17.0) == 0.25 and tie_bound(15.9, 15.8) == 0.125
    assert bfloat16_step(0.0) == 0.0


@pytest.mark.parametrize(
    ("one", "other", "place"),
    [([1, 2, 3], [1, 2, 3], None), ([1, 2, 3], [1, 5, 3], 1), ([1, 2], [1, 2, 3], 2), ([], [4], 0), ([], [], None)],
)
def test_the_first_difference(one, other, place):
    assert difference_at(one, other) == place


@torch.no_grad()
def test_gaps_are_those_of_own_layers_after_the_shared_text(tmp_path):
    write_target(tmp_path / "model", layers=2)
    logits = load_model(tmp_path / "model", attention="sdpa")(torch.tensor([[5, 6, 7, 11, 12]])).logits[0, -1]
    ranked = logits.sort(descending=True).indices.tolist()
    alone = {
        "same": ([5, 6], [7, 8]),
        "near": ([5, 6, 7], [11, 12, ranked[0], 3]),
        "far": ([5, 6, 7], [11, 12, ranked[0]]),
        "ends": ([5], [9]),
        "elsewhere": ([5], [6]),
    }
    drafted = {
        "same": ([5, 6], [7, 8]),
        "near": ([5, 6, 7], [11, 12, ranked[1], 4]),
        "far": ([5, 6, 7], [11, 12, ranked[-1]]),
        "ends": ([5], [9, 10]),
    }
    found = {each.row_id: each for each in first_differences(scored_model(tmp_path / "model"), alone, drafted)}
    assert set(found) == {"near", "far", "ends"}
    assert (found["near"].token, found["near"].one, found["near"].other) == (2, ranked[0], ranked[1])
    for name, place in (("near", 1), ("far", -1)):
        gap = float(logits[ranked[0]] - logits[ranked[place]])
        assert found[name].gap == pytest.approx(gap, abs=1e-5) and found[name].signed_gap > 0
        assert found[name].is_tie == (gap <= 2 * bfloat16_step(float(max(abs(logits[ranked[0]]), abs(logits[ranked[place]])))))
    assert not found["far"].is_tie
    assert (found["ends"].one, found["ends"].other, found["ends"].gap, found["ends"].is_tie) == (None, 10, None, False)
