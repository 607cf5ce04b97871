"""vLLM's text log: the lines of several versions, joined by the request's id; what it cut is never learnt as if whole."""

import io
import json

import pytest
from test_example_formats import FIXTURES, said
from test_formats import read
from test_trace_formats import decided

from resources.lake.lake import LakeLayout
from resources.lake.tables import Tables
from resources.reading.ingestion import ingest
from resources.records.objects.object_reader import read_object
from resources.records.objects.vllm_log import is_vllm_log
from resources.sources.sources import SourceSettings

LOG = (FIXTURES.parent / "vllm.log").read_text()


def name(number):
    return f"chatcmpl-{number:032x}"


def request(number, prompt, ids="None"):
    return (
        f"INFO 06-01 10:00:{number % 60:02d} [logger.py:41] Received request {name(number)}: prompt: {prompt!r}, params: "
        f"SamplingParams(n=1, temperature=0.7), prompt_token_ids: {ids}, prompt_embeds shape: None, lora_request: None."
    )


def response(number, output):
    return (
        f"INFO 06-01 10:00:{number % 60:02d} [logger.py:71] Generated response {name(number)}: output: {output!r}, "
        "output_token_ids: None, finish_reason: stop"
    )


def chatml(text):
    return f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"


def test_requests_and_responses_of_several_versions(tmp_path):
    rows, bad, _, report = read(tmp_path, LOG.encode(), name="vllm.log")
    for row in rows:
        row |= {column: json.loads(row[column]) for column in ("messages", "completion", "params")}
    found = {row["request_id"]: row for row in rows}
    assert set(found) == {name(1), name(2), "cmpl-c52d", name(8)}
    first, second = found[name(1)], found[name(2)]
    assert said(first["messages"]) == [("system", "Be brief."), ("user", 'hé, it is "so"')]
    assert (first["completion"]["content"], first["finish_reason"], first["source_format"]) == ('no\n"never"', "length", "vllm")
    assert first["params"]["stop"] == ["END", "it's"] and first["params"]["max_tokens"] == 100 and "seed" not in first["params"]
    assert said(second["messages"])[1] == ("user", "two\nlines") and second["completion"]["content"] == "it's yes"
    assert (second["prompt_token_ids"], second["completion_token_ids"], second["model"]) == ([1, 2, 3], [7, 8], "support")
    assert said(found["cmpl-c52d"]["messages"]) == [("user", "How to make pizza")] and found["cmpl-c52d"]["params"]["templated"]
    assert found[name(8)]["completion"]["content"] == " hello" and str(found[name(8)]["ts"]).startswith("2026-06-01 10:00:10")
    assert {row["source_row"]: row["error_code"] for row in bad} == {
        14: "missing_field", 16: "missing_field", 17: "unpaired", 18: "truncated_log",
    }  # fmt: skip
    assert "VLLM_LOGGING_LEVEL=DEBUG" in bad[0]["message"] and "--enable-log-outputs" in bad[2]["message"]
    assert decided(tmp_path) == {"vllm_chatter": 6, "vllm_delta": 1, "vllm_params": 1}
    assert (report.total.rows, report.total.quarantined, report.total.skipped, report.total.read) == (4, 4, 8, 16)


def test_a_rotated_log_is_joined_whichever_part_arrives_first(tmp_path):
    lines = LOG.splitlines(keepends=True)
    logs, tables = tmp_path / "logs", Tables(LakeLayout.open(tmp_path / "lake"))
    logs.mkdir()
    source = {"engine": SourceSettings(uri=str(logs))}
    (logs / "server.log").write_text("".join(lines[8:]))
    assert ingest(tables, "w", source).total.rows == 2
    (logs / "server.log.1").write_text("".join(lines[:8]))
    ingest(tables, "w", source)
    rows = tables.open("interactions").to_pyarrow_table().to_pylist()
    assert len(rows) == 4 and {row["request_id"] for row in rows} == {name(1), name(2), "cmpl-c52d", name(8)}


@pytest.mark.parametrize(
    "prompts",
    [
        [chatml("a question that is longer than the limit")[:40], chatml("b")],  # its template is not closed
        [f"{n}: an untemplated text that is much longer than the limit of the log, which is here"[:64] for n in range(4)]
        + ["short"],
    ],
)
def test_cut_prompts_are_quarantined_and_the_others_stay(tmp_path, prompts):
    lines = [line for n, prompt in enumerate(prompts) for line in (request(n, prompt), response(n, f"answer {n}"))]
    rows, bad, _, _ = read(tmp_path, "\n".join(lines).encode(), name="server.log")
    assert [row["request_id"] for row in rows] == [name(len(prompts) - 1)]
    assert {row["error_code"] for row in bad} == {"truncated_log"} and "--max-log-len" in bad[0]["message"]


def test_answers_of_the_length_of_a_cut_prompt_and_prompts_as_long_as_their_token_ids_are_cut(tmp_path):
    lines = [request(0, chatml("much longer than the limit")[:32]), response(0, "a"), request(1, chatml("b")),
        response(1, "c" * 32), request(2, chatml("d")), response(2, "e" * 31), request(3, "x" * 40, list(range(40))),
        response(3, "f")]  # fmt: skip
    rows, bad, _, _ = read(tmp_path, "\n".join(lines).encode(), name="server.log")
    assert [row["request_id"] for row in rows] == [name(2)] and len(bad) == 3


def test_short_answers_of_one_length_are_no_cut_ones(tmp_path):
    lines = [line for n in range(8) for line in (request(n, chatml(f"number {n}")), response(n, f"label-{n}"))]
    rows, bad, _, _ = read(tmp_path, "\n".join(lines).encode(), name="server.log")
    assert len(rows) == 8 and not bad


def test_several_answers_to_a_request_are_choices_and_the_year_is_the_objects(tmp_path):
    lines = [request(1, chatml("a")).replace("06-01", "12-31"), response(1, "b"), response(1, "c")]
    rows, *_ = read(tmp_path, "\n".join(lines).encode(), name="server-2026-01-01.log")
    assert [(row["choice_index"], json.loads(row["completion"])["content"]) for row in rows] == [(0, "b"), (1, "c")]
    assert {str(row["dt"]) for row in rows} == {"2025-12-31"}


def test_a_line_that_is_not_utf_8_costs_only_itself():
    content = "\n".join([request(1, "a"), response(1, "Muller").replace("Mu", "M\udcfc"), request(2, "b")]).encode(
        "utf-8", "surrogateescape"
    )
    problem, found = list(read_object(io.BytesIO(content), "a.log", plain_text=False))
    assert (problem.row, problem.error_code, found.rows.to_pylist()) == (2, "invalid_utf8", [1, 3])


@pytest.mark.parametrize(
    "head", [b'{"log": "INFO 06-01 10:00:00 [logger.py:1] x"}', b"INFO:     Started server", b"", b"a,b\n1,2\n"]
)
def test_other_logs_are_not_taken_for_it(head):
    assert not is_vllm_log(head)
