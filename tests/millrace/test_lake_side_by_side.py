"""Two releases side by side: prompts that both answered, from the evaluation between them and from what their drafters
learnt."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

import millrace
from model_ops.speculators.serving import DrafterServing, VllmOptions
from resources.artefacts.registry import Registry
from resources.lake.lake import LakeLayout
from resources.releases.gate_result import GateResult
from resources.releases.release import write_release
from resources.reporting.side_by_side import differences

WORDS = ["[UNK]", "a", "small", "big", "cat", "<b>", "draw"]


def tokens(text):
    return [WORDS.index(word) for word in text.split()]


def release(lake, number, answers, champion=None, beside=()):
    """A finished release whose drafter learnt these answers: row_id -> answer."""
    registry = Registry(lake, "tutor")

    def finished(kind, name, inputs, fill, config=None):
        draft = registry.draft(kind, name, name, ("model_ops/jobs/job.py",), {"number": number, **(config or {})},
            [each.as_input() for each in inputs])  # fmt: skip
        fill(draft.directory)
        return registry.finish(draft, {})

    def target_files(home):
        tokenizer = Tokenizer(WordLevel({word: at for at, word in enumerate(WORDS)}, unk_token="[UNK]"))
        tokenizer.pre_tokenizer = Whitespace()
        tokenizer.save(str(home / "tokenizer.json"))
        for name in ("config.json", "chat_template.jinja", "model.safetensors"):
            (home / name).write_text("{}")

    rows = [
        {"row_id": row, "turn": 0, "prompt_token_ids": tokens("draw a cat"), "answer_token_ids": tokens(said)}
        for row, said in answers.items()
    ]
    target = finished("model", "sft_model", [], target_files)
    learnt = finished("dataset", "speculator_dataset", [target],
        lambda home: pq.write_table(pa.Table.from_pylist(rows), home / "train.parquet"))  # fmt: skip
    drafter = finished("model", "speculator", [target, learnt], lambda home: (home / "model.safetensors").write_text("{}"))
    report = finished("dataset", "evaluation_report", [target, drafter],
        lambda home: (home / "side_by_side.jsonl").write_text(
            "".join(json.dumps(line) + "\n" for line in beside)))  # fmt: skip
    gate, serving = (
        GateResult(name="recovery", wanted=0.99, measured=0.999, passed=True),
        DrafterServing("eagle3", VllmOptions("eagle3")),
    )
    made = finished("release", "release", [target, drafter, report],
        lambda home: write_release(home, "tutor", target, drafter, 3, [gate], serving), {"champion": champion})  # fmt: skip
    return made.version


@pytest.fixture
def two(tmp_path):
    """A lake with two releases, the second compared with the first when it was made."""
    lake = LakeLayout.open(tmp_path / "lake")
    first = release(lake, 1, {f"r{each}": "a small cat" for each in range(60)})
    line = {"row_id": "held", "kind": "gain",
        "prompt": [{"role": "user", "text": "draw a cat"}], "logged": "as logged", "target": "new <b>",
        "champion": "old"}  # fmt: skip
    second = release(lake, 2,
        {f"r{each}": "a big cat" if each % 2 else "a small cat" for each in range(10, 90)}, first,
        [line, {**line, "row_id": "r11"}])  # fmt: skip
    return millrace.open(tmp_path / "lake"), first, second


def test_greedy_answers_come_first_and_sampled_ones_fill_up(two):
    lake, first, second = two
    frame = lake.side_by_side(first[:6], second, prompts=50).frame
    assert frame.height == 50 and frame["how"].to_list()[:3] == ["greedy, held out", "greedy, held out",
        "sampled, for the drafter"]  # fmt: skip
    assert frame.row(0, named=True) == {
        "row_id": "held", "turn": -1, "how": "greedy, held out", "prompt": "user: draw a cat", "logged": "as logged",
        "before": "old", "after": "new <b>", "same": False,
    }  # fmt: skip
    assert frame["row_id"].n_unique() == 50  # r11 is shown once
    assert set(frame.filter(frame["how"] != "greedy, held out")["after"]) == {"a big cat", "a small cat"}
    back = lake.side_by_side(second, first, prompts=1).frame.row(0, named=True)
    assert (back["before"], back["after"]) == ("new <b>", "old")
    assert lake.side_by_side(first, second, prompts=3).frame.equals(frame.head(3))


def test_the_page_marks_differences_and_escapes_what_models_said(two, tmp_path):
    lake, first, second = two
    found = lake.side_by_side(first, second)
    page = found.html(tmp_path / "answers.html").read_text()
    assert "<del>small</del> cat" in page and "a <ins>big</ins> cat" in page
    assert "<ins>new &lt;b&gt;</ins>" in page and "new <b>" not in page
    assert "<b>50 prompts</b>" in page and "<script" not in page and "http" not in page
    assert found._repr_html_() in page and repr(found) == f"<50 prompts answered by {first} and {second}>"


def test_what_cannot_be_compared_is_one_sentence(two):
    lake, first, second = two
    for words, said in (
        ((first, first), "is named twice"),
        ((first, "ffffff"), "names no release"),
        ((first, second, 0), "give 1 or more"),
    ):
        with pytest.raises(millrace.Error, match=said):
            lake.side_by_side(*words)
    other = release(LakeLayout.open(lake.path), 3, {"x": "a cat"})
    with pytest.raises(millrace.Error, match="no prompt is known that both"):
        lake.side_by_side(first, other)


def test_differences_are_word_by_word_and_keep_both_texts():
    left, right = differences("a small cat & dog", "a big cat & dog!")
    assert left == "a <del>small</del> cat &amp; dog" and right == "a <ins>big</ins> cat &amp; dog<ins>!</ins>"
    assert differences("same", "same") == ("same", "same") and differences("", "x") == ("", "<ins>x</ins>")
    assert "\\u202e" in differences("a\u202eb", "")[0]
