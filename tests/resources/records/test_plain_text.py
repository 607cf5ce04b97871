r"""Text from logs as text: what steers a terminal or cannot be seen is spelt out, all else stays."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resources.records.plain_text import escaped_json, page_environment, visible


@pytest.mark.parametrize(("text", "shown"), [
    ("\x1b[31mred\x1b[0m", r"\x1b[31mred\x1b[0m"),
    ("\x1b]0;title\x07", r"\x1b]0;title\x07"),
    ("\x9b31m \x85", r"\x9b31m \x85"),
    ("a\tb\r\nc\x00\x7f", r"a\tb\r\nc\x00\x7f"),
    ("\u202eevil\u2066\u2069\u200e\u200b\ufeff", r"\u202eevil\u2066\u2069\u200e\u200b\ufeff"),
    ("\u2028\u2029", r"\u2028\u2029"),
    ("\U000e0041\ud800", r"\U000e0041\ud800"),
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
