"""Control text of other models in an answer: a leak is cut, text about it stays."""

# ruff: noqa: RUF001 (DeepSeek's bars)
import pytest

from resources.records.normal_messages import without_leak


@pytest.mark.parametrize(
    ("answer", "kept"),
    [
        ("Mars.</s>", "Mars."),
        ("Mars. </s>\n", "Mars."),
        ("<s> Mars.</s>", "Mars."),
        ("It is 42.<|endoftext|>", "It is 42."),
        ("Lake Como.<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nAnother?", "Lake Como."),
        ("Neon.<|im_end|>\n<|im_start|>user\nThanks", "Neon."),
        ("Hi.<end_of_turn>\n<start_of_turn>user\nq", "Hi."),
        ("Gold<｜end▁of▁sentence｜><｜User｜>x", "Gold"),
        ("ok<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|>", "ok"),
        ("Final<|return|>", "Final"),
        ("ok<|end|><|start|>assistant<|channel|>final", "ok"),
        ("Yes.<|user|>\nNo", "Yes."),
        ("Fine.\n[INST] next [/INST] foo", "Fine."),
        ("Mars.<|endoftext|>Human: next", "Mars."),
        ("It is 4\n</s>\n\nUser: more", "It is 4"),
        ("x = '</s>'\nreturn x</s>", "x = '</s>'\nreturn x"),
        ("```\n<|im_start|>\n```\nDone.<|im_end|>", "```\n<|im_start|>\n```\nDone."),
        ("Mars<|im_end|>user\nMore", "Mars"),
        ("Como<|eot_id|>assistant\n\nGarda", "Como"),
        ("42<|endoftext|>Human: And?", "42"),
        ("Mars<|endoftext|>The planet", "Mars"),
        ("Mars</s>What else", "Mars"),
        ("Mars <|im_end|>", "Mars"),
        ("Oslo, Rome  </s>", "Oslo, Rome"),
        ("It's Mars.</s><s>[INST] What's next? [/INST]", "It's Mars."),
        ("It's Mars.</s> Isn't it", "It's Mars."),
        ("It is `</s>`.<|im_end|>\n<|im_start|>user\nThanks<|im_end|>", "It is `</s>`."),
        ("Mars. [/INST]", "Mars."),
        ("Copper. [/INST] Tin is one.", "Copper."),
        ("Mars. [INST] More [/INST] Venus.", "Mars."),
        ("Gold is Au</s> [INST] And", "Gold is Au"),
        ("Mars.<|reserved_special_token_247|>", "Mars."),
        ("Mars.<unused94>", "Mars."),
        ("Mars.<|file_separator|>", "Mars."),
        ("Mars.<|fim_pad|>", "Mars."),
        ("Mars <|im_end|>\n<|im_start|>user\nMore", "Mars"),
        ("Mars<|end|>\nMore", "Mars"),
        ("**Mars**<|im_end|>\n<|im_start|>assistant", "**Mars**"),
        ("Mars.<|im_end|> Venus", "Mars."),
        ("It's its users' town</s>", "It's its users' town"),
        ('Read "Mars".<|im_end|> "Venus" too', 'Read "Mars".'),
        ("Now <s>10</s> 8.<|im_end|>", "Now <s>10</s> 8."),
    ],
)
def test_an_answer_ends_at_control_text_that_leaked(answer, kept):
    assert without_leak(answer) == kept and without_leak(kept) == kept


@pytest.mark.parametrize(
    "answer",
    [
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
    ],
)
def test_text_about_control_text_stays(answer):
    assert without_leak(answer) == answer
