"""UTF-16, decoded while it is read; everything else untouched."""
# ruff: noqa: RUF001 (DeepSeek's bars)

import base64
import io
import json

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_formats import pair, read
from test_normalised import chunk, events

from model_ops.chat_apis.blocks import json_text, mend_json
from resources.curating.personal_data.placeholders import Redactor
from resources.records.extraction import LINES
from resources.records.formats import FORMATS
from resources.records.normal_messages import without_leak
from resources.records.objects.decompress import utf8, utf16_of
from resources.records.objects.object_reader import read_object
from resources.records.plain_text import escaped_json, page_environment, visible
from resources.records.repeated_keys import with_last_values
from tests.thorough_cases import thorough_except

MILL_LINES = "".join(json.dumps({"id": n, "text": "Müller, 水車の粉屋は 🎡"}, ensure_ascii=False) + "\r\n" for n in range(300))
CODES = ["utf-16", "utf-16-le", "utf-16-be"]


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("size", [2, 3, 4096])
def test_chunks_of_any_size_become_utf_8(code, size):
    content = MILL_LINES.encode(code)
    chunks = [content[:64], *(content[place : place + size] for place in range(64, len(content), size))]
    assert b"".join(utf8(iter(chunks))).decode() == MILL_LINES


@pytest.mark.parametrize("code", CODES)
def test_records_of_utf_16_have_their_lines(code):
    [found] = read_object(io.BytesIO(MILL_LINES.encode(code)), "a.jsonl", plain_text=False)
    assert found.rows.to_pylist() == list(range(1, 301)) and json.loads(found.raw[299].as_py())["text"].startswith(
        "Müller, 水車"
    )


@pytest.mark.parametrize("code", ["utf-16-le", "utf-16-be"])
def test_a_text_without_any_ascii_is_decoded_after_its_mark(code):
    text = "\ufeff水車の粉屋は働く漢字中文瑞" * 200
    assert b"".join(utf8(iter([text.encode(code)]))).decode() == text[1:]


def test_whole_texts_and_lone_surrogates():
    [found] = read_object(io.BytesIO("\ufeffhé\nho".encode("utf-16-le")), "a.txt", plain_text=True)
    assert json.loads(found.raw[0].as_py()) == {"text": "hé\nho"}
    assert b"".join(utf8(iter(["{'a': '\ud83d'}".encode("utf-16-le", "surrogatepass")]))).decode() == "{'a': '\ufffd'}"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        MILL_LINES.encode(),
        MILL_LINES.encode("utf-32"),
        MILL_LINES.encode("utf-32-le"),
        "ü".encode("latin-1") * 50,
        bytes(200),
        bytes(range(256)) * 4,
        b"\xff\xfe\x0bv\xc9\xcd\x1e\x8c\n" + b'{"request": {}, "response": {"id": "resp_1"}}\n' * 9,
        b"\x01\0\x02\0\x03\0" * 50,
        b"PK\x03\x04" + bytes(60),
    ],
)
def test_other_content_stays_as_it_is(content):
    assert utf16_of(content) is None and b"".join(utf8(iter([content]))) == content


@pytest.mark.parametrize(("text", "shown"), [
    ("\x1b[31mred\x1b[0m", r"\x1b[31mred\x1b[0m"), ("\x1b]0;title\x07", r"\x1b]0;title\x07"), ("\x9b31m \x85", r"\x9b31m \x85"),
    ("a\tb\r\nc\x00\x7f", r"a\tb\r\nc\x00\x7f"),
    ("\u202eevil\u2066\u2069\u200e\u200b\ufeff", r"\u202eevil\u2066\u2069\u200e\u200b\ufeff"),
    ("\u2028\u2029", r"\u2028\u2029"), ("\U000e0041\ud800", r"\U000e0041\ud800"),
    (":100: [red]x[/] C:\\new <b> 👩\u200d💻 ü 你好 שלום می\u200cروم", ":100: [red]x[/] C:\\new <b> 👩\u200d💻 ü 你好 שלום می\u200cروم"),
])  # fmt: skip
def test_what_steers_or_hides_is_spelt_out_and_all_else_stays(text, shown):
    assert visible(text) == shown
    assert visible(visible(text)) == shown


def test_lines_stay_where_a_paragraph_is_meant(tmp_path):
    (tmp_path / "page.html.j2").write_text("{{ text }}{{ 3 }}")
    page = page_environment(tmp_path).get_template("page.html.j2").render(text="a\nb\x1b<")
    assert visible("a\nb\x1b", lines=True) == "a\nb\\x1b" and page == "a\nb\\x1b&lt;3"


@settings(max_examples=50)
@given(st.text(alphabet=st.characters(codec="utf-8")))
def test_json_holds_the_same_values(text):
    written = escaped_json(json.dumps({text: text}, ensure_ascii=False))
    assert json.loads(written) == {text: text}
    assert visible(written, lines=True) == written


texts = st.text(st.characters() | st.sampled_from("\ud83d\ude00\udfff"), max_size=6)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
)


@given(values)
@settings(max_examples=200, deadline=None)
def test_law_any_value_becomes_text_and_whole_ones_stay_as_they_are(value):
    text, escaped = json_text(value), json.dumps(value)
    assert text.encode().decode() == text
    assert json_text(json.loads(text)) == text and mend_json(text) is None
    if "\\ud" not in escaped:
        assert json.loads(text) == value and mend_json(escaped) is None
    elif mend_json(escaped) is not None:
        assert json.loads(mend_json(escaped)) == json.loads(text)


def test_halves_that_meet_are_one_character_and_others_a_mark():
    assert json_text(["\ud83d" + "\ude00", "a\ud83d", "\ude00b"]) == '["😀","a�","�b"]'
    assert mend_json('{"cut": "a\\ud83d') is None and mend_json('{"a": "\\\\ud83d"}') is None


def answered(**message):
    record = pair()
    record["response"]["choices"][0]["message"] = {"role": "assistant", "content": None, **message}
    return record


PICTURE = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{base64.b64encode(bytes(99)).decode()}"}}
CALL = {"id": "t", "type": "function", "function": {"name": "f", "arguments": {"q": "x\ud83d"}}}
HALVES = {
    "answer": [answered(content="x\ud83d")],
    "arguments": [answered(tool_calls=[CALL])],
    "beside a picture": [
        pair(request={"messages": [{"role": "user", "content": [{"type": "text", "text": "x\ud83d"}, PICTURE]}]})
    ],
    "events": [pair(response=events([chunk(delta={"content": "x\ud83d"}), chunk(finish="stop")]))],
    "chunks": [chunk(delta={"content": "x\ud83d"}, request=pair()["request"]), chunk(finish="stop")],
    "other format": [pair(), {"response_id": "r1", "value": "up", "comment": "x\ud83d"}],
}


@pytest.mark.parametrize("place", thorough_except(["arguments", "chunks", "other format"], HALVES))
def test_a_record_with_half_a_character_is_read(tmp_path, place):
    good = pair()
    good["response"] = {**good["response"], "id": "whole"}
    rows, bad, feedback, report = read(tmp_path, "".join(json.dumps(each) + "\n" for each in [good, *HALVES[place]]).encode())
    assert not bad and len(rows) == 2 and report.total.read == len(rows) + len(feedback)
    assert "x�" in json.dumps([rows, feedback], default=str, ensure_ascii=False)


def test_a_character_that_two_chunks_share_is_whole_again(tmp_path):
    first, *others = [chunk(delta={"content": piece}) for piece in ("x\ud83d", "\ude00y")]
    (row,), bad, _, _ = read(tmp_path, [{**first, "request": pair()["request"]}, *others, chunk(finish="stop")])
    assert not bad and json.loads(row["completion"])["content"] == "x😀y"


@pytest.mark.parametrize("odd", ['"q": ' + "9" * 5000, '"q": ' + "[" * 3000 + "]" * 3000])
def test_numbers_and_nesting_beyond_reason_cost_their_own_record_only(tmp_path, odd):
    text = json.dumps(answered(tool_calls=[{"id": "t", "type": "function", "function": {"name": "f", "arguments": {"q": 7}}}]))
    rows, (bad,), _, report = read(tmp_path, "\n".join([text.replace('"q": 7', odd), json.dumps(pair())]).encode())
    assert len(rows) == 1 and (bad["source_row"], bad["error_code"]) == (1, "wrong_type") and report.total.read == 2


@pytest.mark.parametrize("depth", thorough_except([700, 990, 3000], [300, 700, 950, 990, 3000]))
def test_nesting_beside_a_picture_costs_nothing(tmp_path, depth):
    record = json.dumps(pair(request={"messages": [{"role": "user", "content": [PICTURE]}]}))
    deep = f'{record[:-1]}, "deep": {"[" * depth}{"]" * depth}}}'
    rows, bad, _, _ = read(tmp_path, "\n".join([deep, record.replace("r1", "r2"), deep.replace("r1", "r3")]).encode())
    assert not bad and len(rows) == 3
    stream = json.dumps(chunk(delta={"content": "a"}, request=pair()["request"]))
    lines = [f'{stream[:-1]}, "usage": {"[" * depth}{"]" * depth}}}', json.dumps(chunk(finish="stop"))]
    rows, bad, _, report = read(tmp_path, "\n".join(lines).encode(), name="chunks.jsonl")
    assert report.total.read in (1, 2) and len(rows) + len(bad) >= 3  # too deep for the fold: lines, each with its reason


def test_personal_data_beside_half_a_character_in_a_tools_arguments():
    arguments = json.dumps({"q": "x\ud83d mail a@example.org"})
    redacted = Redactor().redact_json(json.dumps([{"role": "assistant", "arguments": arguments}]))
    assert redacted.encode() and "<EMAIL_1>" in redacted and "a@example" not in redacted


odd = (
    st.none()
    | st.integers()
    | st.text(max_size=3)
    | st.lists(st.none() | st.dictionaries(st.text(max_size=2), st.none()))
    | (st.dictionaries(st.sampled_from(["object", "choices", "a"]), st.none() | st.lists(st.integers()), max_size=2))
)
KEYS = (
    "trace_id", "start_time", "type", "data_type", "name", "value", "object", "data", "choices", "event", "rid", "obj",
    "messages", "prompt", "input_ids", "token_ids", "traj", "text", "custom_id", "id", "response", "conversations",
)  # fmt: skip


@given(st.dictionaries(st.sampled_from(KEYS), odd))
@settings(max_examples=300, deadline=None)
def test_law_no_record_is_too_odd_to_be_asked_for_its_format(record):
    assert all(form.recognises(record) in (True, False) for form in FORMATS.values())


@pytest.mark.parametrize(("answer", "kept"), [
    ("Mars.</s>", "Mars."), ("Mars. </s>\n", "Mars."), ("<s> Mars.</s>", "Mars."), ("It is 42.<|endoftext|>", "It is 42."),
    ("Lake Como.<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nAnother?", "Lake Como."),
    ("Neon.<|im_end|>\n<|im_start|>user\nThanks", "Neon."), ("Hi.<end_of_turn>\n<start_of_turn>user\nq", "Hi."),
    ("Gold<｜end▁of▁sentence｜><｜User｜>x", "Gold"), ("ok<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|>", "ok"),
    ("Final<|return|>", "Final"), ("ok<|end|><|start|>assistant<|channel|>final", "ok"), ("Yes.<|user|>\nNo", "Yes."),
    ("Fine.\n[INST] next [/INST] foo", "Fine."), ("Mars.<|endoftext|>Human: next", "Mars."),
    ("It is 4\n</s>\n\nUser: more", "It is 4"), ("x = '</s>'\nreturn x</s>", "x = '</s>'\nreturn x"),
    ("```\n<|im_start|>\n```\nDone.<|im_end|>", "```\n<|im_start|>\n```\nDone."), ("Mars<|im_end|>user\nMore", "Mars"),
    ("Como<|eot_id|>assistant\n\nGarda", "Como"), ("42<|endoftext|>Human: And?", "42"), ("Mars<|endoftext|>The planet", "Mars"),
    ("Mars</s>What else", "Mars"), ("Mars <|im_end|>", "Mars"), ("Oslo, Rome  </s>", "Oslo, Rome"),
    ("It's Mars.</s><s>[INST] What's next? [/INST]", "It's Mars."), ("It's Mars.</s> Isn't it", "It's Mars."),
    ("It is `</s>`.<|im_end|>\n<|im_start|>user\nThanks<|im_end|>", "It is `</s>`."), ("Mars. [/INST]", "Mars."),
    ("Copper. [/INST] Tin is one.", "Copper."), ("Mars. [INST] More [/INST] Venus.", "Mars."),
    ("Gold is Au</s> [INST] And", "Gold is Au"), ("Mars.<|reserved_special_token_247|>", "Mars."), ("Mars.<unused94>", "Mars."),
    ("Mars.<|file_separator|>", "Mars."), ("Mars.<|fim_pad|>", "Mars."), ("Mars <|im_end|>\n<|im_start|>user\nMore", "Mars"),
    ("Mars<|end|>\nMore", "Mars"), ("**Mars**<|im_end|>\n<|im_start|>assistant", "**Mars**"),
    ("Mars.<|im_end|> Venus", "Mars."), ("It's its users' town</s>", "It's its users' town"),
    ('Read "Mars".<|im_end|> "Venus" too', 'Read "Mars".'), ("Now <s>10</s> 8.<|im_end|>", "Now <s>10</s> 8."),
])  # fmt: skip
def test_an_answer_ends_at_control_text_that_leaked(answer, kept):
    assert without_leak(answer) == kept and without_leak(kept) == kept


@pytest.mark.parametrize("answer", [
    "Each turn of ChatML ends with `<|im_end|>`.",
    "ChatML ends each turn with <|im_end|>",
    "Use <|im_end|> to end.\nMore text.",
    "It looks like:\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
    "Now <s>10</s>",
    "<s>old</s> new",
    "print('</s>')",
    'The tokens are "<s>" and "</s>".',
    "A <|eot_id|> token ends turns.",
    "1. </s>\n2. <s>",
    "List:\n- <|im_end|>\n- <|eot_id|>",
    "使用<|im_end|>结束每个回合。",
    "a < b | c > d",
    "See [INST] tags.\n\n[INST] opens a turn, [/INST] closes it.",
    "ChatML has two tokens.\n<|im_start|> opens a turn and <|im_end|> ends it.",
    "Tokens map as follows.\n</s> -> 2\n<s> → 1",
    "## Special tokens\n\n<|begin_of_text|> marks the start.\n<|eot_id|> ends a turn.",
    "IDs.\n</s> = 2",
    "Marks.\n<|end|> (Phi)\nMore",
    "## Special tokens\n\n<|begin_of_text|>: Start\n<|eot_id|>: End",
    "It has its own format. [INST] opens a turn, [/INST] closes it.",
    "It has its own form.\n[INST] and [/INST] wrap it.",
    "The end-of-sequence token is </s>",
    "Its end token in Qwen: <|im_end|>",
    "This is a prompt in ChatML\n\n<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n\nEach turn is closed.",
    "A chat template\n\n<|user|>\nHi<|end|>\n<|assistant|>\nHo<|end|>",
    "Song.\n[Inst]\nVerse.",
    "The marks are\n1. <|im_start|>\n2. <|im_end|>",
    "Which? <|im_end|> or <|endoftext|>? Both end a turn.",
    "| Phi | <|end|> |\n| Qwen | <|im_end|> |",
    "Es gibt zwei.\n<|im_start|> öffnet.",
    "Llama 3 has <|eot_id|> <|eom_id|> and more.",
    "<p>Now:</p>\n<p><s>50</s>\n40</p>",
    "<p><s>Hello.</s><s>How?</s></p>",
    "f'</s>' is it",
])  # fmt: skip
def test_text_about_control_text_stays(answer):
    assert without_leak(answer) == answer


def lines(*texts):
    return pa.table([[0] * len(texts), list(range(len(texts))), list(texts)], LINES)


@pytest.mark.parametrize(("text", "meant"), [
    ('{"a": 1, "a": 2}', {"a": 2}),
    ('{"a": {"b": "x", "c": [1], "b": "y"}}', {"a": {"b": "y", "c": [1]}}),
    ('[{"a": 1}, {"a": 2, "b": {"a": 3}, "a": 4}]', [{"a": 1}, {"a": 4, "b": {"a": 3}}]),
    ('{"q\\"": [], "q\\"": [{}], "k": "\\\\"}', {'q"': [{}], "k": "\\"}),
])  # fmt: skip
def test_the_last_of_two_values_counts(text, meant):
    assert json.loads(text) == meant
    [given] = with_last_values(lines(text))["raw"].to_pylist()
    assert json.loads(given, object_pairs_hook=list) == json.loads(json.dumps(meant), object_pairs_hook=list)


@pytest.mark.parametrize(
    "text",
    [
        '{"a": {"a": {"a": "a"}}, "b": [{"a": 1}, {"a": 1}, ["a", "a"]]}',
        '{"a": "\\", \\"a\\": 2", "b": "a"}',
        '{"a": 1, "a": ',
        "",
        "null",
        '{"a": "b", "b": ["a,", ",", "a"], "c": {"a": 1}, "d": {"b": 1}}',
        "[" * 300 + "]" * 300,
        "a, b, a",
    ],
)
def test_other_texts_stay_as_they_are(text):
    assert with_last_values(lines("{}", text))["raw"].to_pylist() == ["{}", text]


def test_a_record_with_two_contents_is_the_one_that_its_client_read(tmp_path):
    twice = json.dumps(pair()).replace('"messages":', '"messages": [{"role": "user", "content": "first"}], "messages":', 1)
    [row], bad, _, _ = read(tmp_path, twice.encode())
    assert not bad and [message["content"] for message in json.loads(row["messages"])] == ["hé"]
