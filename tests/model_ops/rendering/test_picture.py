"""The picture of rendered rows: what is learnt is marked, what is left out says why, and text of rows cannot become markup."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.template_kinds import answer, tokenizer_of, user
from model_ops.jobs import ModelError
from model_ops.rendering.picture import Picture, TokenSpan

TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}{{ m.role + ':' + m.content }}"
    "<|im_end|>{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
)


@pytest.fixture
def dataset(tmp_path):
    rows = [
        [user("<b>one</b>"), answer("1")],
        [{"role": "system", "content": "s"}, user("two"), answer("2")],
        [user("three"), answer("3", weight=0)],
        [user("four"), answer("4"), user("five"), answer("5")],
    ]
    pq.write_table(
        pa.table({"row_id": [f"row-{n}" for n in range(4)], "messages": [json.dumps(row) for row in rows]}),
        tmp_path / "train.parquet",
    )
    return tmp_path


def test_runs_tell_context_from_what_is_learnt_and_dropped_rows_say_why(dataset):
    picture = Picture.of(dataset, "train", tokenizer_of(TEMPLATE), count=2)
    rows = {row.row_id: row for row in picture.rows}
    assert rows["row-0"].contexts == [
        [TokenSpan("user:<b>one</b><|im_end|>assistant:", False, 26), TokenSpan("1<|im_end|>", True, 2)]
    ]
    assert [run.text for run in rows["row-3"].contexts[0] if run.is_learnt] == ["4<|im_end|>", "5<|im_end|>"]
    assert rows["row-1"].refusal == "the chat template refuses the row (no system)"
    assert rows["row-2"].refusal == "no answer with weight 1"
    assert picture.dropped == {rows["row-1"].refusal: 1, rows["row-2"].refusal: 1}
    assert (picture.looked_at, picture.contexts, picture.learnt_tokens) == (4, 2, 6)
    assert [row.row_id for row in Picture.of(dataset, "train", tokenizer_of(TEMPLATE), 1).rows] == ["row-0", "row-1"]


def test_the_page_escapes_what_rows_say(dataset):
    text = Picture.of(dataset, "train", tokenizer_of(TEMPLATE), count=3).page()
    assert "&lt;b&gt;one&lt;/b&gt;" in text and "<b>one</b>" not in text
    assert "<mark>1&lt;|im_end|&gt;</mark>" in text and "no answer with weight 1" in text


def test_the_markdown_keeps_to_its_fences(tmp_path):
    rows = [[user("```\n# no heading"), answer("1" * 4_000)]]
    pq.write_table(pa.table({"row_id": ["row-0"], "messages": [json.dumps(row) for row in rows]}), tmp_path / "train.parquet")
    text = Picture.of(tmp_path, "train", tokenizer_of(TEMPLATE), 1).markdown()
    assert "````\nuser:```\n# no heading<|im_end|>assistant:«1" in text and "[...]" in text and len(text) < 2_500


def test_one_row_alone_and_a_row_that_is_not_there(dataset):
    assert [row.row_id for row in Picture.of(dataset, "train", tokenizer_of(TEMPLATE), 3, "row-3").rows] == ["row-3"]
    with pytest.raises(ModelError, match="no row nobody"):
        Picture.of(dataset, "train", tokenizer_of(TEMPLATE), 3, "nobody")
