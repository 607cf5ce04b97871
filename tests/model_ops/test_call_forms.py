"""What a chat template writes of a call is read back as that call, in each form, with the values that break a naive reader."""

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from jinja2 import Environment
from tiny_models import run_job, write_dataset, write_target

from benchmarks.template_kinds import tokenizer_of
from model_ops.decoding.prompts import read_prompts
from model_ops.documents import Document, Documents, read_documents
from model_ops.files.digests import vocabulary_digest
from model_ops.jobs.job import ModelError
from model_ops.operations import measure_lengths
from model_ops.operations.measure_lengths import Findings, compare_drafter, compare_evaluation, compare_training
from model_ops.operations.measure_lengths_settings import DrafterLimit, EvaluationLimit, TrainingLimit
from model_ops.rendering import ChatTemplate, Row, learnt_turns
from model_ops.tasks import UnusableAnswer, message_of
from model_ops.tasks.call_forms import calls_in


def rows(*shapes: tuple[int, int]) -> Documents:
    """One document for each (tokens, index of the first token with a loss)."""
    return Documents.gather(
        Document(f"row-{place}", np.zeros(tokens, np.int32), np.arange(tokens) >= first)
        for place, (tokens, first) in enumerate(shapes)
    )


@pytest.mark.parametrize(("overflow", "cut", "lost"), [("truncate", 1, 1), ("split", 2, 0), ("drop", 0, 2)])
def test_max_length_costs_what_the_overflow_says(overflow, cut, lost):
    found = Findings()
    compare_training(
        "sft", "train", rows((10, 5), (30, 5), (30, 20)), TrainingLimit(max_length=20, overflow=overflow), None, found
    )
    [cost] = found.costs
    assert (cost.limit, cost.rows, cost.cut, cost.lost, found.problems) == ("sft.max_length", 3, cut, lost, [])


def test_a_stage_that_has_no_row_left_gets_a_sentence():
    found = Findings()
    compare_training("sft", "train", rows((30, 25), (40, 22)), TrainingLimit(max_length=20), None, found)
    assert found.problems == [
        "sft: none of 2 training rows has a token to learn within sft.max_length, 20: the earliest answer "
        "begins after 22 tokens; raise sft.max_length"
    ]


def test_rows_beyond_the_positions_are_one_sentence_for_a_stage_and_none_where_max_length_cuts_them():
    found = Findings()
    for split in ("train", "validation"):
        compare_training("sft", split, rows((10, 5), (30, 5)), TrainingLimit(max_length=40), 16, found)
        compare_training("student", split, rows((10, 5), (30, 5)), TrainingLimit(max_length=16), 16, found)
    assert found.problems == [
        "sft: 1 of 2 train rows have more tokens than the model's 16 positions, and sft.max_length is 40; set "
        "sft.max_length to at most 16"
    ]


def test_what_the_drafter_loses():
    found = Findings()
    limit = DrafterLimit(max_length=20, max_new_tokens=4)
    compare_drafter(np.array([5, 14, 18, 19, 40]), limit, 16, found)
    assert [(cost.limit, cost.cut, cost.lost) for cost in found.costs] == [("positions", 1, 3), ("speculator.max_length", 1, 2)]
    assert found.problems == []
    compare_drafter(np.array([16, 17]), limit, 16, found)
    assert found.problems == [
        "speculator: none of 2 training prompts leaves room for an answer within the model's 16 positions: the "
        "shortest has 16 tokens; take a base model with more positions, or set speculator.enabled to false"
    ]


def test_acceptance_that_cannot_be_measured_stops_only_a_release_with_its_gate():
    limit = EvaluationLimit(max_length=64, max_new_tokens=8)
    loose, strict = Findings(), Findings()
    compare_evaluation(rows((20, 5)), np.array([9]), limit, 16, loose)
    compare_evaluation(rows((20, 5)), np.array([9]), limit.model_copy(update={"acceptance_is_gated": True}), 16, strict)
    assert loose.problems == [] and loose.notes == [
        "evaluation: acceptance cannot be measured: none of 1 test prompts has at most 8 tokens, and the shortest has 9 (the model has "
        "16 positions, an answer takes 8)"
    ]
    assert strict.problems[0].startswith(loose.notes[0]) and "release.gates.acceptance_length to null" in strict.problems[0]


def test_test_rows_without_a_prompt_are_said_for_what_they_are():
    found = Findings()
    limit = EvaluationLimit(max_length=64, max_new_tokens=8, acceptance_is_gated=True)
    compare_evaluation(rows((20, 5)), np.array([], np.int64), limit, 16, found)
    assert found.problems == [
        "evaluation: acceptance cannot be measured: no test row has a prompt; rows of plain text and of token ids have none; add a "
        "source of conversations, or set release.gates.acceptance_length to null"
    ]


def test_a_test_split_without_an_answer_is_said():
    found = Findings()
    compare_evaluation(rows(), np.array([], np.int64), EvaluationLimit(max_length=64, max_new_tokens=8), 16, found)
    assert found.problems == ["evaluation: no test row has an answer to measure; raise datasets.sft.test_share or add sessions"]


def test_token_ids_of_another_tokenizer_are_refused(tmp_path):
    write_target(tmp_path / "base", layers=1)
    (tmp_path / "dataset").mkdir()
    measure_lengths.refuse_other_token_ids(tmp_path / "base", tmp_path / "dataset")
    (tmp_path / "dataset" / "tokenizers.json").write_text(json.dumps({"same": vocabulary_digest(tmp_path / "base")}))
    measure_lengths.refuse_other_token_ids(tmp_path / "base", tmp_path / "dataset")
    (tmp_path / "dataset" / "tokenizers.json").write_text(json.dumps({"packed": "0" * 64}))
    with pytest.raises(ModelError, match="seeds packed: its token ids are of another tokenizer than the base model's"):
        measure_lengths.refuse_other_token_ids(tmp_path / "base", tmp_path / "dataset")


def test_tokens_are_those_of_the_later_stages(tmp_path):
    tokenizer = write_target(tmp_path / "base", layers=1, max_position_embeddings=40)
    dataset = write_dataset(tmp_path / "dataset")
    settings = {
        "training": {"sft": {"max_length": 40}},
        "drafter": {"max_length": 64, "max_new_tokens": 8},
        "evaluation": {"max_length": 64, "max_new_tokens": 8},
    }
    metrics = run_job(measure_lengths, tmp_path / "out", {"model": tmp_path / "base", "dataset": dataset}, **settings)
    report = json.loads((tmp_path / "out" / "lengths.json").read_text())
    documents, counts = read_documents(dataset, "train", tokenizer, 40)
    longest = max(len(prompt.ids) for prompt in read_prompts(dataset, "test", tokenizer))
    costs = {
        (row["stage"], row["dataset_split"], row["limit"]): row
        for row in pq.read_table(tmp_path / "out" / "limits.parquet").to_pylist()
    }
    of_sft = costs["sft", "train", "sft.max_length"]
    assert (of_sft["cut"], of_sft["lost"]) == (counts["cut_rows"] - counts["dropped_rows"], counts["dropped_rows"])
    assert of_sft["cut"] > 0 and report["test_prompts"]["longest"] == longest
    assert metrics["positions"] == 40 and metrics["problems"] == report["problems"]
    assert len(documents) == of_sft["rows"] - of_sft["lost"]


SHARED = Path(__file__).parents[3] / "shared" / "data" / "chat_templates"
TEMPLATES = [path for path in sorted(SHARED.glob("*.jinja")) if path.stem.startswith(("qwen2_5", "qwen3", "gemma4"))]

XML = """{%- for tool_call in calls %}
{{- '<tool_call>\\n<function=' + tool_call.name + '>\\n' }}
{%- for args_name, args_value in tool_call.arguments|items %}
    {{- '<parameter=' + args_name + '>\\n' }}
    {%- set args_value = args_value | tojson | safe if args_value is mapping or (args_value is sequence and args_value is not string) else args_value | string %}
    {{- args_value }}
    {{- '\\n</parameter>\\n' }}
{%- endfor %}
{{- '</function>\\n</tool_call>' }}
{%- endfor %}"""
"""As Qwen 3.5's template writes calls: values have no quotes, True and None are Python's."""
GEMMA = """{%- macro format_argument(argument) -%}
{%- if argument is string -%}{{- quote + argument + quote -}}
{%- elif argument is boolean -%}{{- 'true' if argument else 'false' -}}
{%- elif argument is mapping -%}{{- '{' -}}
{%- for key, value in argument | dictsort -%}{% if not loop.first %},{% endif %}{{- key -}}:{{- format_argument(value) -}}{%- endfor -%}{{- '}' -}}
{%- elif argument is iterable -%}{{- '[' -}}
{%- for item in argument -%}{{- format_argument(item) -}}{%- if not loop.last %},{% endif -%}{%- endfor -%}{{- ']' -}}
{%- else -%}{{- argument -}}{%- endif -%}
{%- endmacro -%}
{%- for call in calls -%}
{{- begin + 'call:' + call.name + '{' -}}
{%- for key, value in call.arguments | dictsort -%}{% if not loop.first %},{% endif %}{{- key -}}:{{- format_argument(value) -}}{%- endfor -%}
{{- '}' + end -}}
{%- endfor -%}"""
"""As Gemma 4's and FunctionGemma's templates write calls: keys and numbers bare, text between marks."""
HERMES = """{%- for call in calls %}<tool_call>
{"name": "{{ call.name }}", "arguments": {{ call.arguments | tojson }}}
</tool_call>
{% endfor %}"""
FORMS = {
    "hermes": (HERMES, {}),
    "xml": (XML, {}),
    "gemma 4": (GEMMA, {"quote": '<|"|>', "begin": "<|tool_call>", "end": "<tool_call|>"}),
    "functiongemma": (GEMMA, {"quote": "<escape>", "begin": "<start_function_call>", "end": "<end_function_call>"}),
    "lfm2": (None, {}),
}
ARGUMENTS = [
    {"text": 'it\'s "quoted" and {braced: [1, 2]}, \\n back\\slashed'},
    {"text": "several\nlines\n\n  indented\n"},
    {"text": "17"},  # text that looks like a number
    {"text": "a <b>, a > b, </parameter> & <parameter=x> in the middle of a line"},
    {"text": ""},
    {"count": 17, "share": -0.5, "tiny": 1e-07},
    {"flag": True, "other": False},
    {"nothing": None},
    {"items": ["x", 'y"z', 3, None, True], "thing": {"key": "v:w", "inner": {"list": [1, {"a": "b,c"}]}}},
    {"either": "text", "choice": "red"},
    {},
]
SCHEMA = {
    "text": {"type": "string"}, "count": {"type": "integer"}, "share": {"type": "number"}, "tiny": {"type": "number"},
    "flag": {"type": "boolean"}, "other": {"type": ["boolean", "null"]},
    "nothing": {"anyOf": [{"type": "string"}, {"type": "null"}]}, "items": {"type": "array"}, "thing": {"type": "object"},
    "either": {"anyOf": [{"type": "integer"}, {"type": "string"}]}, "choice": {"enum": ["red", "blue"]},
}  # fmt: skip
TOOLS = [{"type": "function", "function": {"name": "act", "parameters": {"type": "object", "properties": SCHEMA}}}]


def written(form: str, *calls: dict) -> str:
    template, values = FORMS[form]
    if template is None:  # Python's syntax, which LFM2 was taught by examples: its template writes no calls
        said = ", ".join(f"act({', '.join(f'{key}={value!r}' for key, value in call.items())})" for call in calls)
        return f"<|tool_call_start|>[{said}]<|tool_call_end|>"
    environment = Environment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    return environment.from_string(template).render(calls=[{"name": "act", "arguments": call} for call in calls], **values)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("arguments", ARGUMENTS, ids=lambda arguments: ",".join(arguments) or "none")
def test_a_call_is_read_as_the_template_writes_it(form, arguments):
    said = written(form, arguments)
    assert [call.arguments for call in calls_in(said, TOOLS)] == [arguments], said


@pytest.mark.parametrize("form", FORMS)
def test_calls_of_one_turn_stay_apart_and_the_text_before_them_is_content(form):
    calls = [{"text": "a"}, {"count": 2}, {}]
    found = message_of(
        f"I will act.\n\n{written(form, *calls)}", "", TOOLS, ["<|tool_call>", "<|tool_call_start|>", "<tool_call>"]
    )
    assert found["content"] == "I will act."
    assert [json.loads(call["function"]["arguments"]) for call in found["tool_calls"]] == calls
    assert len({call["id"] for call in found["tool_calls"]}) == 3


@pytest.mark.parametrize(
    "said",
    [
        "<tool_call>\n<function=act>\n<parameter=text>\nx\n</function>\n</tool_call>",  # no end of the parameter
        "<tool_call>\n<function=act>\n<parameter=text>\nx\n</parameter>\n</tool_call>",  # none of the function
        "<tool_call>\n<function=act>\nx\n</function>\n</tool_call>",  # a value without a name
        '<|tool_call>call:act{text:<|"|>x}<tool_call|>',
        "<|tool_call>act{}<tool_call|>",
        "<|tool_call_start|>[act('x')]<|tool_call_end|>",
        '<tool_call>{"name": "act"</tool_call>',
        '<tool_call>{"name": "act"}</tool_call><tool_call>{act}</tool_call>',
    ],
)
def test_a_broken_call_is_said_to_be_unreadable(said):
    with pytest.raises(UnusableAnswer, match="cannot be read"):
        message_of(said, "", TOOLS, [])


def test_a_form_without_its_first_mark_is_read():
    """Qwen3-Coder often leaves it out; vLLM's parser takes it too."""
    assert calls_in("<function=act>\n<parameter=count>\n3\n</parameter>\n</function>\n</tool_call>", TOOLS) == [
        ("act", {"count": 3})
    ]


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"type": "integer"}, "three", "three"),  # the tool says what is wrong
        ({"type": "boolean"}, "TRUE", True),
        ({"type": "object"}, "{'a': True}", {"a": True}),
        ({"type": "array"}, "[1, NaN]", "[1, NaN]"),
        ({"type": "string"}, "true", "true"),
        ({"type": ["string", "null"]}, "null", None),
        ({}, "4", 4),  # a schema without a type: JSON where it is some
        ({}, "four", "four"),
        (True, "4", 4),
        ({"type": [3, "string"], "anyOf": [False]}, "4", "4"),
        ({"type": 3, "enum": 3, "anyOf": 3}, "4", 4),
    ],
)
def test_the_schema_types_a_value_without_quotes(schema, text, value):
    tools = [{"type": "function", "function": {"name": "act", "parameters": {"properties": {"x": schema}}}}]
    said = f"<tool_call><function=act><parameter=x>{text}</parameter></function></tool_call>"
    assert calls_in(said, tools) == [("act", {"x": value})]


@pytest.mark.skipif(not TEMPLATES, reason="needs ../shared/data/chat_templates")
@pytest.mark.parametrize("kind", TEMPLATES, ids=lambda path: path.stem)
@pytest.mark.parametrize("arguments", ARGUMENTS, ids=lambda arguments: ",".join(arguments) or "none")
def test_what_a_published_template_writes_is_read(kind, arguments):
    template = kind.read_text()
    tokenizer = tokenizer_of(template)
    call = {"id": "call00000", "type": "function", "function": {"name": "act", "arguments": json.dumps(arguments)}}
    messages = [{"role": "user", "content": "Act."}, {"role": "assistant", "content": "", "tool_calls": [call]}]
    (turn,) = learnt_turns(Row("a", messages, TOOLS), ChatTemplate.of(tokenizer))
    said = turn.answer.removesuffix("<|im_end|>").removesuffix("<turn|>").removesuffix("<|tool_response>")
    found = message_of(said, turn.context, TOOLS, tokenizer.all_special_tokens)
    assert [json.loads(each["function"]["arguments"]) for each in found["tool_calls"]] == [arguments], said
