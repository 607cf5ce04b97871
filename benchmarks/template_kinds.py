"""For benchmarks.templates: a byte tokenizer that knows a chat template's special tokens, and kinds of conversations."""

import json
import re

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

SPECIAL = re.compile(
    r"<[|\uff5c][^<>|\uff5c\s]+[|\uff5c]>|<\|[^<>|\s]+>|<[^<>|\s]+\|>|<(?:start|end)_of_(?:turn|text|image)>|</?s>|<(?:bos|eos)>"
    r"|\[/?(?:INST|SYSTEM_PROMPT|TOOL_CALLS|AVAILABLE_TOOLS|TOOL_RESULTS|TOOL_CONTENT|ARGS|CALL_ID)\]"
)

ENDS = (
    "<|im_end|>",
    "<|eot_id|>",
    "<end_of_turn>",
    "<turn|>",
    "<|return|>",
    "<|END_OF_TURN_TOKEN|>",
    "<\uff5cend▁of▁sentence\uff5c>",
)
"""Special tokens that end answers: the eos token of the templates that have one of them."""


def tokenizer_of(template):
    """A tokenizer of bytes and of the special tokens that the template writes."""
    letters = {letter: place for place, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    backend = Tokenizer(models.BPE(letters, []))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    marks = [mark for mark in dict.fromkeys(SPECIAL.findall(template)) if "think" not in mark.lower()]
    eos = next((mark for mark in ENDS if mark in marks), "<EOS>")
    backend.add_special_tokens(
        [AddedToken(mark, special=True, normalized=False) for mark in dict.fromkeys(["<BOS>", "<EOS>", *marks])]
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<BOS>", eos_token=eos)
    tokenizer.chat_template = template
    return tokenizer


def user(text):
    return {"role": "user", "content": text}


def answer(text, **more):
    return {"role": "assistant", "content": text, **more}


def call(number, city):
    return {
        "id": f"call{number:05d}",
        "type": "function",
        "function": {"name": "weather", "arguments": json.dumps({"city": city})},
    }


def result(number, text):
    return {"role": "tool", "tool_call_id": f"call{number:05d}", "name": "weather", "content": text}


TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather of a city",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "description": "a city"}},
                "required": ["city"],
            },
        },
    }
]

KINDS = {
    "one turn": [user("hi"), answer("hello there")],
    "several turns": [
        user("one"),
        answer("first answer"),
        user("two"),
        answer("second answer"),
        user("three"),
        answer("third"),
    ],
    "system message": [
        {"role": "system", "content": "Be short."},
        user("one"),
        answer("first answer"),
        user("two"),
        answer("second answer"),
    ],
    "one call": [
        user("weather?"),
        answer(None, tool_calls=[call(1, "Oslo")]),
        result(1, '{"t": 4}'),
        answer("Oslo 4"),
        user("thanks"),
        answer("welcome"),
    ],
    "parallel calls": [
        user("weather?"),
        answer(None, tool_calls=[call(1, "Oslo"), call(2, "Rome")]),
        result(1, '{"t": 4}'),
        result(2, "rain"),
        answer("Oslo 4, Rome wet"),
    ],
    "reasoning": [
        user("one"),
        answer("first answer", reasoning="because of one"),
        user("two"),
        answer("second answer", reasoning_content="because of two"),
    ],
    "weight 0": [user("one"), answer("first answer", weight=0), user("two"), answer("second answer")],
    "multimodal part": [
        {
            "role": "user",
            "content": [{"type": "text", "text": "what is"}, {"type": "image_url", "image_url": {"url": "data:x"}}],
        },
        answer("a cat"),
    ],
}
