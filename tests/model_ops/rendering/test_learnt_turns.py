"""What is learnt is what the model has to say after the prompt that a server renders."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from benchmarks.template_kinds import KINDS, TOOLS, answer, call, result, tokenizer_of, user
from benchmarks.templates import judge
from model_ops.documents.conversations import tokenize
from model_ops.jobs import ModelError
from model_ops.rendering.chat_template import ChatTemplate, Unrenderable
from model_ops.rendering.row import RenderingSettings, Row
from model_ops.rendering.tokens import ServedTokens, end_of_turn_ids
from model_ops.rendering.turns import learnt_turns

SHARED = Path(__file__).parents[4] / "shared" / "data" / "chat_templates"
TEMPLATES = sorted(SHARED.glob("*.jinja")) if SHARED.exists() else []
HEADER = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
    "{% if m.role == 'assistant' and WRITTEN %}{{ '<think>\n' + (m.reasoning_content or '') + '\n</think>\n\n' }}{% endif %}"
    "{{ m.content + '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}ASKED{% endif %}"
)
PLAIN = (
    "{% for m in messages %}{{ m.role + ':' + m.content }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
THINKS = HEADER.replace("WRITTEN", "loop.last")
OFF_SWITCH = "{% if enable_thinking is false %}{{ '<think>\n\n</think>\n\n' }}{% else %}{{ '<think>\n' }}{% endif %}"
TALK = [user("one"), answer("1", reasoning="because"), user("two"), answer("2")]


def said(template, messages, thinking="keep", **row):
    tokenizer = tokenizer_of(template)
    return [
        (turn.context, turn.answer) for turn in learnt_turns(Row("row", messages, **row), ChatTemplate.of(tokenizer), thinking)
    ]


def learnt(template, messages, **row):
    """The learnt text of every context."""
    tokenizer = tokenizer_of(template)
    documents, counts = tokenize([Row("row", messages, **row)], tokenizer, 10_000)
    return [tokenizer.decode(document.input_ids[document.targets]) for document in documents], counts


@pytest.mark.skipif(not TEMPLATES, reason="needs ../shared/data/chat_templates")
@pytest.mark.parametrize("kind", KINDS)
def test_real_templates_teach_what_a_server_would_have_said(kind):
    results = {path.stem: judge(path.read_text(), kind) for path in TEMPLATES}
    assert set(results.values()) <= {"learnt", "-"}, results
    assert sum(result == "learnt" for result in results.values()) >= 5


def test_reasoning_is_learnt_in_the_templates_own_place_and_left_out_of_later_contexts():
    template = THINKS.replace("ASKED", "")
    assert [text for _, text in said(template, TALK)] == [
        "<think>\nbecause\n</think>\n\n1<|im_end|>",
        "<think>\n\n</think>\n\n2<|im_end|>",
    ]
    assert "because" not in said(template, TALK)[1][0]
    texts, counts = learnt(template, TALK)
    assert len(texts) == 2 and counts.contexts == 2, "the second prompt does not repeat the reasoning"


@pytest.mark.parametrize(
    ("thinking", "first", "second"),
    [
        ("keep", "because\n</think>\n\n1", "\n</think>\n\n2"),
        ("strip", "\n</think>\n\n1", "\n</think>\n\n2"),
        ("empty", "because\n</think>\n\n1", "\n</think>\n\n2"),
    ],
)
def test_a_block_that_the_prompt_opens_is_closed_before_the_answer(thinking, first, second):
    """DeepSeek-R1: the generation prompt opens a block that the rendering of an answer leaves out."""
    template = HEADER.replace("WRITTEN", "false").replace("ASKED", "{{ '<think>\n' }}")
    assert [text for _, text in said(template, TALK, thinking)] == [first + "<|im_end|>", second + "<|im_end|>"]


def test_an_empty_block_is_learnt_where_it_is_asked_for():
    template = HEADER.replace("WRITTEN", "m.reasoning_content").replace("ASKED", "")
    assert said(template, TALK)[1][1] == "2<|im_end|>"
    assert said(template, TALK, "empty")[1][1] == "<think>\n\n</think>\n\n2<|im_end|>"
    assert said(template, TALK, "strip")[0][1] == "1<|im_end|>"


def test_an_answer_that_continues_a_message_follows_the_open_message():
    messages = [user("one"), answer("The answer ", weight=0), answer("is 4.")]
    [(context, text)] = said(
        HEADER.replace("WRITTEN", "false").replace("ASKED", ""), messages, request={"continue_final_message": True}
    )
    assert context == "<|im_start|>user\none<|im_end|>\n<|im_start|>assistant\nThe answer " and text == "is 4.<|im_end|>"
    [(closed, _)] = said(HEADER.replace("WRITTEN", "false").replace("ASKED", ""), messages)
    assert closed.endswith("The answer <|im_end|>\n<|im_start|>assistant\n")


@pytest.mark.parametrize(
    ("messages", "why"),
    [
        ([user("one"), answer("I ", weight=0), answer(None, tool_calls=[call(1, "Oslo")])], "is not text"),
        ([user("one"), answer("I ", weight=0), answer("see")], "does not continue a message as it begins it"),
    ],
)
def test_a_continuation_that_cannot_be_taught_is_refused(messages, why):
    template = PLAIN.replace("m.content", "((m.content | length | string) + m.content)")
    with pytest.raises(Unrenderable, match=why):
        said(template, messages, request={"continue_final_message": True})


def test_a_request_that_continues_a_question_is_an_ordinary_one():
    template = HEADER.replace("WRITTEN", "false").replace("ASKED", "")
    assert said(template, TALK, request={"continue_final_message": True}) == said(template, TALK)


def test_a_prompt_that_was_logged_with_thinking_off_is_taught_with_thinking_off():
    template = HEADER.replace("WRITTEN", "false").replace("ASKED", OFF_SWITCH)
    off = {"chat_template_kwargs": {"enable_thinking": False}}
    assert said(template, TALK[2:], request=off) == [
        ("<|im_start|>user\ntwo<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n", "2<|im_end|>")
    ]
    assert said(template, TALK[2:], request={"reasoning_effort": "none"}) == said(template, TALK[2:], request=off)
    assert said(template, TALK[2:])[0][1] == "\n</think>\n\n2<|im_end|>"
    earlier = [user("one"), answer("1", learnt_request=off), *TALK[2:]]
    assert [text for _, text in said(template, earlier)] == ["1<|im_end|>", "\n</think>\n\n2<|im_end|>"]


def test_reasoning_that_later_requests_left_out_is_learnt_with_its_answer_only():
    template = HEADER.replace("WRITTEN", "m.reasoning_content").replace("ASKED", "")
    (_, first), (context, _) = said(template, [user("one"), answer("1", learnt_reasoning="because"), *TALK[2:]])
    assert first == "<think>\nbecause\n</think>\n\n1<|im_end|>" and "because" not in context


def test_a_server_reads_arguments_and_the_template_sees_an_object():
    template = (
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{{ m.content }}{% for c in m.tool_calls or [] %}"
        "{% for k, v in c.function.arguments.items() %}{{ k ~ '=' ~ v }}{% endfor %}{{ c.function.name }}{% endfor %}"
        "{{ '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    )
    talk = [user("weather?"), answer(None, tool_calls=[call(1, "Oslo")]), result(1, "4"), answer("cold")]
    assert [text for _, text in said(template, talk, tools=TOOLS)] == ["city=Osloweather<|im_end|>", "cold<|im_end|>"]


def test_arguments_that_are_no_json_stay_text_and_are_counted():
    template = (
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{{ m.content }}{% for c in m.tool_calls or [] %}"
        "{{ c.function.name ~ (c.function.arguments if c.function.arguments is string else c.function.arguments | tojson)"
        " }}{% endfor %}{{ '<|im_end|>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    )
    broken = {"type": "function", "function": {"name": "weather", "arguments": "{city: Oslo"}}
    texts, counts = learnt(template, [user("weather?"), answer("", tool_calls=[broken, call(1, "Rome")])])
    assert texts == ['weather{city: Osloweather{"city": "Rome"}<|im_end|>'] and counts.text_arguments == 1


def test_old_function_calls_are_tool_calls():
    path = (
        "{% for m in messages %}{{ m.role + ':' + m.content }}{{ m.tool_calls[0].function.name if m.tool_calls }}|{% endfor %}"
    )
    old = [
        user("weather?"),
        {"role": "assistant", "content": None, "function_call": {"name": "weather", "arguments": "{}"}},
        {"role": "function", "name": "weather", "content": "4"},
        answer("cold"),
    ]
    tokenizer = tokenizer_of(path)
    assert ChatTemplate.of(tokenizer).prompt(Row("row", old), 3) == "user:weather?|assistant:weather|tool:4|"


@pytest.mark.parametrize(
    ("end", "alone", "wanted"), [("", "", "1<|user|>"), ("", "<|end|>\n", "1<|end|>"), ("<|end|>\n", "<EOS>", "1<|end|>")]
)
def test_the_end_of_turn_is_found_however_a_template_writes_it(end, alone, wanted):
    """GLM ends an answer with the next role's mark; Phi-3 writes eos after <|end|> when the conversation ends."""
    template = (
        "{% for m in messages %}{{ '<|' + m.role + '|>' + m.content }}{% if m.role == 'assistant' %}{{ 'END' }}"
        "{% if loop.last %}{{ 'LAST' }}{% endif %}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}{# <|user|> <|end|> #}"
    )
    template = template.replace("END", end).replace("LAST", alone)
    assert said(template, [user("one"), answer("1")])[0][1] == wanted
    tokenizer = tokenizer_of(template)
    assert wanted.removeprefix("1") in tokenizer.convert_ids_to_tokens(end_of_turn_ids(tokenizer))


def test_without_any_end_of_turn_the_eos_token_ends_answers():
    template = "{% for m in messages %}{{ m.role ~ ': ' ~ m.content ~ '\n' }}{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
    texts, _ = learnt(template, [user("one"), answer("1"), user("two"), answer("2")])
    assert texts == [" 1<EOS>", " 2<EOS>"], "a server's next prompt has no eos, so each answer has a context of its own"


def test_dates_are_those_of_the_row():
    template = (
        "{{ strftime_now('%d %B %Y') + '\n' }}{% for m in messages %}{{ m.role + ':' + m.content + '<|im_end|>' }}{% endfor %}"
        "{% if add_generation_prompt %}assistant:{% endif %}"
    )
    [(context, _)] = said(template, [user("one"), answer("1")], ts=datetime(2026, 3, 1, tzinfo=UTC))
    assert context == "01 March 2026\nuser:one<|im_end|>assistant:"
    assert said(template, [user("one"), answer("1")])[0][0].startswith("01 January 2025")


def test_a_logged_request_cannot_replace_messages_or_the_template():
    template = "{{ style }}{% for m in messages %}{{ m.role + ':' + m.content + '<|im_end|>' }}{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
    request = {"chat_template_kwargs": {"messages": [], "add_generation_prompt": False, "chat_template": "x", "style": "!"}}
    assert said(template, [user("one"), answer("1")], request=request)[0] == ("!user:one<|im_end|>assistant:", "1<|im_end|>")


def test_documents_of_the_request_are_rendered():
    template = (
        "{% for d in documents or [] %}{{ d.text }}|{% endfor %}{% for m in messages %}{{ m.role + ':' + m.content }}<|im_end|>"
        "{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
    )
    [(context, text)] = said(template, [user("one"), answer("1")], request={"documents": [{"text": "a mill"}]})
    assert context.startswith("a mill|user:one") and text == "1<|im_end|>"


def test_named_templates_are_chosen_as_a_server_chooses():
    plain = PLAIN
    tokenizer = tokenizer_of(plain)
    tokenizer.chat_template = {"default": plain, "tool_use": "TOOLS " + plain}
    row = [user("one"), answer("1")]
    assert not ChatTemplate.of(tokenizer).prompt(Row("row", row), 1).startswith("TOOLS")
    assert ChatTemplate.of(tokenizer).prompt(Row("row", row, TOOLS), 1).startswith("TOOLS")


def test_rows_that_cannot_be_rendered_are_left_out_counted_and_bounded():
    template = (
        "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}{{ m.role + ':' + m.content }}"
        "<|im_end|>{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
    )
    tokenizer = tokenizer_of(template)
    good = [Row(f"row-{number}", [user("one"), answer("1")]) for number in range(19)]
    bad = Row("bad", [{"role": "system", "content": "a secret"}, user("one"), answer("1")])
    documents, counts = tokenize([*good, bad], tokenizer, 100)
    assert len(documents) == 19 and counts.unrenderable_rows == 1
    assert counts.unrenderable == {"the chat template refuses the row (no system)": 1}
    with pytest.raises(ModelError, match=r"1 of 20 rows, more than the allowed share of 0.01; .* such as bad") as error:
        tokenize([*good, bad], tokenizer, 100, rendering=RenderingSettings(most_unrenderable=0.01))
    assert "secret" not in str(error.value)


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (answer(" "), "neither content nor a tool call"),
        (answer("1", weight=2), "neither 0"),
        (answer("1", tool_calls=[call(1, "Oslo")]), "leaves out the tool calls"),
    ],
)
def test_what_cannot_be_taught_is_named(message, reason):
    template = PLAIN
    with pytest.raises(Unrenderable, match=reason):
        said(template, [user("one"), message])
    assert said(template, [user("one"), {**message, "weight": 0}]) == []


@pytest.mark.parametrize(
    ("message", "reason"),
    [(answer("", reasoning="hm"), "holds only reasoning"), (answer("<think>\nstill thinking"), "does not end it")],
)
def test_thoughts_that_the_template_cannot_teach_are_named(message, reason):
    with pytest.raises(Unrenderable, match=reason):
        said(PLAIN, [user("one"), message])
    assert (
        said(THINKS.replace("ASKED", ""), [user("one"), answer("", reasoning="hm")])[0][1]
        == "<think>\nhm\n</think>\n\n<|im_end|>"
    )


ONE_CALL = PLAIN.replace("m.content", "m.content ~ (m.tool_calls[0].function | tojson if m.tool_calls else '')")
ALL_CALLS = PLAIN.replace(
    "m.content", "m.content ~ (m.tool_calls | map(attribute='function') | list | tojson if m.tool_calls else '')"
)


def test_a_template_that_writes_only_the_first_of_several_calls_is_refused_for_them():
    """As gpt-oss's does: two calls of one function, which the first one's name would hide."""
    both = answer("", tool_calls=[call(1, "Paris"), call(2, "Rome")])
    with pytest.raises(Unrenderable, match="leaves out the tool calls"):
        said(ONE_CALL, [user("one"), both], tools=TOOLS)
    assert "Paris" in said(ONE_CALL, [user("one"), answer("", tool_calls=[call(1, "Paris")])], tools=TOOLS)[0][1]
    assert "Rome" in said(ALL_CALLS, [user("one"), both], tools=TOOLS)[0][1]
    same = answer("", tool_calls=[call(1, "Paris"), call(2, "Paris")])
    assert said(ALL_CALLS, [user("one"), same], tools=TOOLS)[0][1].count("Paris") == 2


def test_an_answer_that_was_cut_teaches_no_end_of_turn():
    assert said(PLAIN, [user("one"), answer("It is", learnt_cut=True)])[0][1] == "It is"
    texts, _ = learnt(PLAIN, [user("one"), answer("It is", learnt_cut=True), user("go on"), answer("4.")])
    assert texts == ["It is4.<|im_end|>"]
    with pytest.raises(Unrenderable, match="cut at the token limit"):
        said(ALL_CALLS, [user("one"), answer("", tool_calls=[call(1, "Oslo")], learnt_cut=True)], tools=TOOLS)


def test_a_damaged_settings_file_is_named(tmp_path):
    RenderingSettings(thinking="strip").write(tmp_path)
    assert RenderingSettings.read(tmp_path).thinking == "strip"
    (tmp_path / "rendering.json").write_text(json.dumps({"thinking": "loud"}))
    with pytest.raises(ModelError, match="build the dataset again"):
        RenderingSettings.read(tmp_path)


def served(tokenizer, prompt, said, reason="stop"):
    """The log of one answer."""
    return ServedTokens(
        {
            "i1": {
                "prompt_token_ids": tokenizer.encode(prompt),
                "completion_token_ids": tokenizer.encode(said),
                "finish_reason": reason,
            }
        }
    )


@pytest.mark.parametrize(
    ("said", "reason", "wanted"),
    [
        ('{"t":  4}<|im_end|>', "stop", '{"t":  4}<|im_end|>'),
        ('{"t":  4}', "tool_calls", '{"t":  4}<|im_end|>'),
        ('{"t":', "length", '{"t":'),
    ],
)
def test_exact_served_ids_beat_rendering(said, reason, wanted):
    template = PLAIN
    tokenizer = tokenizer_of(template)
    row = Row("row", [user("one"), answer('{"t": 4}')], interaction_ids=("i1",))
    documents, counts = tokenize([row], tokenizer, 100, served=served(tokenizer, "user:one<|im_end|>assistant:", said, reason))
    assert tokenizer.decode(documents[0].input_ids[documents[0].targets]) == wanted and counts.served_answers == 1
    other = served(tokenizer, "[INST]one[/INST]", said)
    documents, counts = tokenize([row], tokenizer, 100, served=other)
    assert tokenizer.decode(documents[0].input_ids[documents[0].targets]) == '{"t": 4}<|im_end|>', "another template's prompt"
    assert counts.served_answers == 0


SYSTEM, DEVELOPER = {"role": "system", "content": "You are Codex."}, {"role": "developer", "content": "Never delete files."}


@pytest.mark.parametrize(
    ("messages", "context"),
    [
        ([SYSTEM, DEVELOPER, user("q")], "system:You are Codex.\n\nNever delete files.<|im_end|>user:q<|im_end|>assistant:"),
        ([DEVELOPER, user("q")], "system:Never delete files.<|im_end|>user:q<|im_end|>assistant:"),
        (
            [user("q"), {**DEVELOPER, "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, SYSTEM],
            "system:a\nb\n\nYou are Codex.<|im_end|>user:q<|im_end|>assistant:",
        ),
        ([{**SYSTEM, "content": ""}, DEVELOPER, user("q")], "system:Never delete files.<|im_end|>user:q<|im_end|>assistant:"),
        (
            [SYSTEM, user("q"), SYSTEM],
            "system:You are Codex.<|im_end|>user:q<|im_end|>system:You are Codex.<|im_end|>assistant:",
        ),
    ],
    ids=["after system", "alone", "after the question", "an empty system", "no developer"],
)
def test_a_developers_message_is_joined_with_the_system_messages_as_the_server_does(messages, context):
    """vLLM 0.32, renderers/hf.py: _convert_developer_to_system, _consolidate_system_messages."""
    assert said(PLAIN, [*messages, answer("a")]) == [(context, "a<|im_end|>")]


def test_a_template_that_knows_the_developer_gets_its_messages_as_they_are():
    """As gpt-oss does; the word alone, without quotes, is no role."""
    knows = "{# #}{% if messages[0].role == 'developer' %}{% endif %}" + PLAIN
    both = [SYSTEM, DEVELOPER, user("q"), answer("a")]
    assert "developer:Never delete files." in said(knows, both)[0][0]
    assert "developer:" not in said("{# for a developer #}" + PLAIN, both)[0][0]


def test_a_later_developers_message_moves_in_the_contexts_that_have_it():
    turns = said(PLAIN, [SYSTEM, user("one"), answer("1"), DEVELOPER, user("two"), answer("2")])
    assert [context for context, _ in turns] == [
        "system:You are Codex.<|im_end|>user:one<|im_end|>assistant:",
        "system:You are Codex.\n\nNever delete files.<|im_end|>user:one<|im_end|>assistant:1<|im_end|>user:two<|im_end|>assistant:",
    ]
