"""An evaluation that loads its models in a real vLLM server: the house model in int8 and unquantized, on GSM8K's test
questions."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from model_ops.evaluation.in_server import in_server
from model_ops.evaluation.measurement import find
from model_ops.evaluation.settings import EvaluateSettings
from model_ops.jobs import Job, Progress
from model_ops.operations.quantize import quantize_directory

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("vllm")]

ROWS = 30
WORDS = ["--max-model-len", "1024", "--enforce-eager"]


@pytest.fixture(scope="module")
def house(shared, tmp_path_factory):
    """The job's inputs."""
    root = tmp_path_factory.mktemp("house")
    lines = (shared / "data/gsm8k_test.jsonl").read_text().splitlines()[:ROWS]
    (root / "dataset").mkdir()
    pq.write_table(
        pa.Table.from_pylist(
            [
                {
                    "row_id": f"gsm8k-{number}",
                    "messages": json.dumps(
                        [{"role": "user", "content": row["question"]}, {"role": "assistant", "content": row["answer"]}]
                    ),
                }
                for number, row in enumerate(map(json.loads, lines))
            ]
        ),
        root / "dataset/test.parquet",
    )
    quantize_directory(shared / "models/house", root / "int8", Progress())
    return {"dataset": root / "dataset", "target": root / "int8", "reference": shared / "models/house"}


def served(python, house, output, monkeypatch, *words, **changes):
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    output.mkdir()
    settings = EvaluateSettings(
        server={"python": str(python), "arguments": [*WORDS, *words], "prompts": 16, "drafting": {"methods": []}, **changes}
    )
    return in_server(Job(operation="evaluate", output=output, inputs=house), settings, Progress())


@pytest.mark.thorough
def test_int8_weights_are_loaded_and_served_as_own_layers_compute(python, house, tmp_path, monkeypatch):
    """0.022 nats a token, the same greedy tokens: what bfloat16 differs from float32 by."""
    found = served(python, house, tmp_path / "report", monkeypatch)
    assert found.not_measured == {} and found.summary["version"] == "0.32.0"
    distance, agreement = (find(found.measurements, what, of="target") for what in ("served_distance", "served_agreement"))
    assert 0 < found.summary["median_distance"] < distance.value < 0.06 and distance.n == 16
    assert agreement.value > 0.98 and agreement.n == 16
    for form in ("reference", "target"):
        rates = found.speed["forms"][form]["tokens_per_second"]
        assert rates["8"]["median"] > rates["1"]["median"] > 5 and found.speed["forms"][form]["memory_mb"] > 500
    assert set(found.speed["ratios"]["target"]) == {"1", "8"}
    print(json.dumps(found.speed), found.summary["samples"])
    assert all(len(sample["text"].split()) > 5 for sample in found.summary["samples"])


def test_what_vllm_refuses_is_told_in_its_own_words(python, house, tmp_path, monkeypatch):
    found = served(python, house, tmp_path / "report", monkeypatch, "--max-model-len", "9000000", unquantized=False)
    [why] = found.not_measured.values()
    print(why)
    assert why.startswith("vllm did not load it: it ended with exit code 1 before it could be asked: ") and "9000000" in why
    assert found.summary["forms"] == {"target": {"loaded": False}} and found.measurements == []
