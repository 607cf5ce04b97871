"""Control text of other models in an answer: a leak is cut, text about it stays."""

# ruff: noqa: RUF001 (DeepSeek's bars)
import pytest

from resources.reading.control_text import without_leak


@pytest.mark.parametrize(("answer", "kept"), [
    ("Mars.</s>", "Mars."), ("Mars. </s>\n", "Mars."), ("<s> Mars.</s>", "Mars."), ("It is 42.<|endoftext|>", "It is 42."),
    ("Lake Como.<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nAnother?", "Lake Como."),
    ("Neon.<|im_end|>\n<|im_start|>user\nThanks", "Neon."), ("Hi.<end_of_turn>\n<start_of_turn>user\nq", "Hi."),
    ("Gold<｜end▁of▁sentence｜><｜User｜>x", "Gold"), ("ok<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|>", "ok"),
    ("Final<|return|>", "Final"), ("ok<|end|><|start|>assistant<|channel|>final", "ok"), ("Yes.<|user|>\nNo", "Yes."),
    ("Fine.\n[INST] next [/INST] foo", "Fine."), ("Mars.<|endoftext|>Human: next", "Mars."), ("It is 4\n</s>\n\nUser: more", "It is 4"),
    ("x = '</s>'\nreturn x</s>", "x = '</s>'\nreturn x"), ("```\n<|im_start|>\n```\nDone.<|im_end|>", "```\n<|im_start|>\n```\nDone."),
])
def test_an_answer_ends_at_control_text_that_leaked(answer, kept):
    assert without_leak(answer) == kept and without_leak(kept) == kept


@pytest.mark.parametrize("answer", [
    "Each turn of ChatML ends with `<|im_end|>`.", "ChatML ends each turn with <|im_end|>", "Use <|im_end|> to end.\nMore text.",
    "It looks like:\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n", "Now <s>10</s>", "<s>old</s> new", "print('</s>')",
    'The tokens are "<s>" and "</s>".', "A <|eot_id|> token ends turns.", "1. </s>\n2. <s>", "List:\n- <|im_end|>\n- <|eot_id|>",
    "使用<|im_end|>结束每个回合。", "a < b | c > d", "See [INST] tags.\n\n[INST] opens a turn, [/INST] closes it.",
])
def test_text_about_control_text_stays(answer):
    assert without_leak(answer) == answer
