"""A conversation keeps what was sampled token by token; the environment's text is what the chat template writes after it."""

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from benchmarks.template_kinds import SPECIAL, TOOLS, result, user
from model_ops.answers import NOT_SAMPLED, Sampled
from model_ops.environments.policy_sessions import Conversation
from model_ops.graders import Grade
from model_ops.rendering import ChatTemplate, Row, TurnEncoder

CHATML = """{% if tools %}<|im_start|>system
{{ tools | tojson }}<|im_end|>
{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content or '' }}{% for c in m.tool_calls or [] %}<tool_call>
{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
LLAMA_3 = """<|begin_of_text|>{% for m in messages %}{% if m.role == 'tool' %}<|start_header_id|>ipython<|end_header_id|>

{{ m.content | tojson }}<|eot_id|>{% elif m.tool_calls %}{% if m.tool_calls | length != 1 %}{{ raise_exception('one call') }}{% endif %}\
<|start_header_id|>assistant<|end_header_id|>

{"name": "{{ m.tool_calls[0].function.name }}", "parameters": {{ m.tool_calls[0].function.arguments | tojson }}}<|eot_id|>\
{% else %}<|start_header_id|>{{ m.role }}<|end_header_id|>

{{ m.content | trim }}<|eot_id|>{% endif %}{% endfor %}{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>

{% endif %}"""
QWEN_3 = """{% set ns = namespace(last=0) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}\
{% for m in messages %}{% if m.role == 'tool' %}{% if messages[loop.index0 - 1].role != 'tool' %}<|im_start|>user{% endif %}{{ '\n' }}<tool_response>
{{ m.content }}
</tool_response>{% if loop.last or messages[loop.index0 + 1].role != 'tool' %}<|im_end|>
{% endif %}{% else %}<|im_start|>{{ m.role }}
{% if m.role == 'assistant' and loop.index0 > ns.last and (loop.last or m.reasoning_content) %}<think>
{{ m.reasoning_content or '' }}
</think>

{% endif %}{{ m.content or '' }}{% for c in m.tool_calls or [] %}{% if not loop.first %}
{% endif %}<tool_call>
{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
MISTRAL = """<s>{% set ns = namespace(last=0) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}\
{% endfor %}{% for m in messages %}{% if m.role == 'user' %}{% if loop.index0 == ns.last and tools %}[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]\
{% endif %}[INST]{{ m.content }}[/INST]{% elif m.role == 'tool' %}[TOOL_RESULTS]{"content": {{ m.content | tojson }}, "call_id": \
"{{ m.tool_call_id }}"}[/TOOL_RESULTS]{% elif m.tool_calls %}[TOOL_CALLS][{% for c in m.tool_calls %}{"name": "{{ c.function.name }}", \
"arguments": {{ c.function.arguments | tojson }}, "id": "{{ c.id }}"}{% if not loop.last %}, {% endif %}{% endfor %}]</s>\
{% else %}{{ m.content }}</s>{% endif %}{% endfor %}"""


def tokenizer_of(template, eos):
    """Bytes, the template's special tokens, and merges, so that one text has several spellings in tokens."""
    pieces = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "on", "do", "ne", "done", "in", "ĊĊ"]
    merges = [("o", "n"), ("d", "o"), ("n", "e"), ("do", "ne"), ("i", "n"), ("Ċ", "Ċ")]
    backend = Tokenizer(models.BPE({piece: place for place, piece in enumerate(pieces)}, merges))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    marks = [mark for mark in dict.fromkeys(SPECIAL.findall(template)) if "think" not in mark]
    backend.add_special_tokens([AddedToken(mark, special=True, normalized=False) for mark in marks])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=eos)
    tokenizer.chat_template = template
    return tokenizer


class Talk:
    """A conversation whose policy says given texts, spelt byte by byte but for special tokens: never as they would be encoded."""

    def __init__(self, template, eos, messages=None):
        self.tokenizer, self.eos = tokenizer_of(template, eos), eos
        row = Row("row", messages or [user("hi")], TOOLS)
        self.talk = Conversation(row, ChatTemplate.of(self.tokenizer), TurnEncoder(self.tokenizer))
        self.said = 0

    def spelt(self, text):
        specials = self.tokenizer.added_tokens_encoder
        parts = [text]
        for mark in specials:
            parts = [piece for part in parts for piece in ([part] if part in specials else split(part, mark))]
        return [
            token
            for part in parts
            for token in ([specials[part]] if part in specials else [t for letter in part for t in self.encoded(letter)])
        ]

    def encoded(self, text):
        return self.tokenizer.encode(text, add_special_tokens=False)

    def say(self, text):
        ids = self.spelt(text + self.eos)
        self.said += 1
        return self.talk.say(Sampled(np.array(ids), np.full(len(ids), -self.said, np.float32), self.said, True))


def split(text, mark):
    first, *rest = text.split(mark)
    return [part for part in [first, *(each for part in rest for each in (mark, part))] if part]


CALL = '<tool_call>\n{"name":  "weather", "arguments": {"city": "London"}}\n</tool_call>'
RESULT = '{"t": "one\\non"}'
KEPT = {
    "ChatML": (CHATML, "<|im_end|>", CALL, f"\n<|im_start|>tool\n{RESULT}<|im_end|>\n<|im_start|>assistant\n"),
    "Llama 3": (
        LLAMA_3,
        "<|eot_id|>",
        '{"name": "weather",  "parameters": {"city": "London"}}',
        '<|start_header_id|>ipython<|end_header_id|>\n\n"{\\"t\\": \\"one\\\\non\\"}"<|eot_id|>'
        "<|start_header_id|>assistant<|end_header_id|>\n\n",
    ),
    "Qwen 3 without reasoning": (
        QWEN_3,
        "<|im_end|>",
        CALL,
        f"\n<|im_start|>user\n<tool_response>\n{RESULT}\n</tool_response><|im_end|>\n<|im_start|>assistant\n",
    ),
    "Qwen 3 with reasoning": (
        QWEN_3,
        "<|im_end|>",
        f"<think>\none by one</think>\n{CALL}",
        f"\n<|im_start|>user\n<tool_response>\n{RESULT}\n</tool_response><|im_end|>\n<|im_start|>assistant\n",
    ),
    "Mistral": (
        MISTRAL,
        "</s>",
        '[TOOL_CALLS][{"name":  "weather", "arguments": {"city": "London"}}]',
        '[TOOL_RESULTS]{"content": "{\\"t\\": \\"one\\\\non\\"}", "call_id": "call00000"}[/TOOL_RESULTS]',
    ),
}


@pytest.mark.parametrize("kind", KEPT)
def test_sampled_tokens_stay_and_the_templates_text_follows_them(kind):
    template, eos, call, between = KEPT[kind]
    one = Talk(template, eos)
    begin = one.talk.context
    assert begin == one.encoded(ChatTemplate.of(one.tokenizer).prompt(Row("row", [user("hi")], TOOLS), 1))
    message, problem = one.say(call)
    assert (message["tool_calls"][0]["function"]["name"], problem) == ("weather", "")
    one.talk.hear([result(0, RESULT)])
    one.say("done")
    said = [one.spelt(call + eos), one.encoded(eos + between)[1:], one.spelt("done" + eos)]
    (part,) = one.talk.parts
    found = part.rollout(True, Grade(1.0), 4)
    assert found.prompt.tolist() == begin and found.tokens.tolist() == [*said[0], *said[1], *said[2]]
    lengths = list(map(len, said))
    assert found.sampled.tolist() == np.repeat([True, False, True], lengths).tolist()
    assert found.versions.tolist() == np.repeat([1, NOT_SAMPLED, 2], lengths).tolist()
    assert found.log_probs.tolist() == np.repeat([-1.0, 0.0, -2.0], lengths).tolist()
    assert one.encoded(call) != one.spelt(call), "the test's spelling is not the tokenizer's"


@pytest.mark.parametrize(
    ("template", "eos", "first", "rewritten"),
    [
        (QWEN_3, "<|im_end|>", "<think>\non and on\n</think>\n\ndone", "<|im_start|>assistant\ndone<|im_end|>"),
        (MISTRAL, "</s>", "done", "<s>[INST]hi[/INST]done</s>[AVAILABLE_TOOLS]"),
    ],
    ids=["reasoning is dropped", "tools move"],
)
def test_what_the_template_rewrites_begins_another_part(template, eos, first, rewritten):
    one = Talk(template, eos)
    one.say(first)
    one.talk.hear([user("go on")])
    one.say("done")
    before, after = one.talk.parts
    assert before.tokens == one.spelt(first + eos)
    assert rewritten in one.tokenizer.decode(after.prompt) and "on and on" not in one.tokenizer.decode(after.prompt)
    messages = [user("hi"), {"role": "assistant", "content": "done"}, user("go on")]
    assert after.prompt == one.encoded(ChatTemplate.of(one.tokenizer).prompt(Row("row", messages, TOOLS), 3))
    assert after.tokens == one.spelt("done" + eos)


def test_an_unreadable_call_is_what_was_said():
    one = Talk(CHATML, "<|im_end|>")
    message, problem = one.say("<tool_call>\n{weather}\n</tool_call>")
    assert problem == "a tool call that cannot be read" and message["content"] == "<tool_call>\n{weather}\n</tool_call>"
    one.talk.hear([result(0, "no")])
    assert len(one.talk.parts) == 1
    assert one.tokenizer.decode(one.talk.context).endswith(
        "</tool_call><|im_end|>\n<|im_start|>tool\nno<|im_end|>\n<|im_start|>assistant\n"
    )


def test_after_a_turn_that_was_cut_the_conversation_goes_on_in_another_part():
    """The end of the turn was not sampled, so no token that follows it was ever the policy's context."""
    talk = Talk(CHATML, "<|im_end|>")
    ids = talk.spelt("on and o")
    talk.talk.say(Sampled(np.array(ids), np.full(len(ids), -1, np.float32), 1, False))
    talk.talk.hear([user("go on")])
    first, second = talk.talk.parts
    assert first.tokens == ids and not second.tokens
    assert talk.tokenizer.decode(second.prompt).endswith(
        "assistant\non and o<|im_end|>\n<|im_start|>user\ngo on<|im_end|>\n<|im_start|>assistant\n"
    )
