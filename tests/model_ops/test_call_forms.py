"""What a chat template writes of a call is read back as that call, in each form, with the values that break a naive reader."""

import json
from pathlib import Path

import pytest
from jinja2 import Environment

from benchmarks.template_kinds import tokenizer_of
from model_ops.rendering import ChatTemplate, Row, learnt_turns
from model_ops.tasks import UnusableAnswer, message_of
from model_ops.tasks.call_forms import calls_in

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
FORMS = {"hermes": (HERMES, {}), "xml": (XML, {}),
    "gemma 4": (GEMMA, {"quote": '<|"|>', "begin": "<|tool_call>", "end": "<tool_call|>"}),
    "functiongemma": (GEMMA, {"quote": "<escape>", "begin": "<start_function_call>", "end": "<end_function_call>"}),
    "lfm2": (None, {})}  # fmt: skip
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
SCHEMA = {"text": {"type": "string"}, "count": {"type": "integer"}, "share": {"type": "number"}, "tiny": {"type": "number"},
    "flag": {"type": "boolean"}, "other": {"type": ["boolean", "null"]},
    "nothing": {"anyOf": [{"type": "string"}, {"type": "null"}]}, "items": {"type": "array"}, "thing": {"type": "object"},
    "either": {"anyOf": [{"type": "integer"}, {"type": "string"}]}, "choice": {"enum": ["red", "blue"]}}  # fmt: skip
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
