"""The process of a model that is talked to: what an answer is made of, how it is stopped, what fits."""

import json

import pytest
from tiny_models import write_target

from model_ops.jobs import ModelError
from model_ops.serving import talk as module
from model_ops.serving.talk import Talk, _Text

ASKED = {"messages": [{"role": "system", "content": "Add."}, {"role": "user", "content": "def add(a, b): return a + b"}],
    "temperature": 0.0, "top_p": 1.0, "max_tokens": 24, "seed": 3, "draft": True}  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    write_target(tmp_path_factory.mktemp("talk") / "model", layers=2)
    return tmp_path_factory.getbasetemp().glob("talk*/model").__next__()


@pytest.fixture
def said(monkeypatch):
    """Lines that the process said."""
    lines = []
    monkeypatch.setattr(module, "say", lines.append)
    return lines


def text_of(lines, done):
    return "".join(text for line in lines for text, _ in line["pieces"]) + done["rest"]


def test_the_drafter_changes_the_speed_and_not_the_greedy_text(model, said):
    talk = Talk(model, "ngram", 3, None)
    drafted = talk.answer(ASKED)
    with_it, pieces = text_of(said, drafted), [piece for line in said for piece in line["pieces"]]
    said.clear()
    alone = talk.answer({**ASKED, "draft": False})
    assert with_it == text_of(said, alone) and alone["tokens"] == drafted["tokens"] <= 24
    assert not any(accepted for line in said for _, accepted in line["pieces"]) and alone["accepted"] == 0
    assert sum(accepted for _, accepted in pieces) <= drafted["accepted"] and drafted["drafts"] >= 0
    assert drafted["done"] in ("stop", "length") and drafted["first_s"] <= drafted["seconds"]
    json.dumps([drafted, said])


def test_an_answer_that_is_stopped_ends_after_its_round(model, said):
    talk = Talk(model, "none", 0, None)
    talk.stopping.set()
    done = talk.answer(ASKED)
    assert done["done"] == "stopped" and len(said) == 1 and done["tokens"] == 1


def test_the_oldest_turns_are_left_out_where_a_conversation_outgrows_the_context(model, said):
    talk = Talk(model, "none", 0, None)
    turns = [{"role": role, "content": "def add " * 6} for _ in range(20) for role in ("user", "assistant")]
    done = talk.answer({**ASKED, "messages": [ASKED["messages"][0], *turns, {"role": "user", "content": "again"}]})
    assert done["dropped"] > 0 and done["dropped"] % 2 == 0 and done["prompt_tokens"] + 24 < talk.positions
    with pytest.raises(ModelError, match=r"the message has .* fit beside an answer: shorten one of them") as raised:
        talk.answer({**ASKED, "messages": [{"role": "user", "content": "zebra " * 400}]})
    assert "zebra" not in str(raised.value)


def test_half_a_character_waits_for_its_other_half():
    class Bytes:
        def decode(self, ids, skip_special_tokens):
            return bytes(ids).decode("utf-8", "replace")

    text = _Text(Bytes())
    assert [text.added(byte) for byte in "aé😀b".encode()] == ["a", "", "é", "", "", "", "😀", "b"] and text.rest() == ""
    assert text.added(0xC3) == "" and text.rest() == "\ufffd"
