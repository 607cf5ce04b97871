"""Cuts an answer at control text of another model that leaked into it, whatever family the log's model was of.

    without_leak("Mars.</s>")                                                  # "Mars."
    without_leak("Lake Como.<|eot_id|><|start_header_id|>user ...")            # "Lake Como."
    without_leak("Each turn of ChatML ends with `<|im_end|>`.")                # unchanged: the text is about the token

A leak is an end of turn at the end of the text or before more control text, or any control text right after a sentence or a
line. What stands in code or quotes, in a list, or in the middle of a sentence is text about control text and stays.
"""

from __future__ import annotations

import re

# ruff: noqa: RUF001 (DeepSeek's bars)
ENDS = """
    <|im_end|> <|endoftext|> </s> <|eot_id|> <|eom_id|> <|end_of_text|> <|eot|> <|eom|> <end_of_turn> <eos> <turn|>
    <|end|> <|return|> <|call|> <｜end▁of▁sentence｜> <|end▁of▁sentence|> <|end_of_sentence|> <|END_OF_TURN_TOKEN|>
    <|END_RESPONSE|> <|END_OF_TEXT|> <|end_of_turn|> <|endofturn|> [|endofturn|] <|assistant_end|> <|EOT|> <|eos|>
    <|end_of_message|> <|message_sep|> <eoa> <seed:eos> [e~[ <|hy_eos|> <|endofprompt|> <pad> <|pad|>
"""
"""Ends of turns and of texts."""
HEADERS = """
    <|im_start|> <|start_header_id|> <|header_start|> [INST] <start_of_turn> <|turn> <|user|> <|assistant|> <|system|>
    <|observation|> <|start|> <｜User｜> <｜Assistant｜> <|User|> <|Assistant|> <|user_start|> <|START_OF_TURN_TOKEN|>
    <|start_of_role|> <|im_user|> <|im_assistant|> <|im_system|> [|user|] [|assistant|] <<SYS>> [SYSTEM_PROMPT] <seed:bos>
    ]~b] <|hy_User|> <｜hy_User｜> <bos> <|begin_of_text|>
"""
"""What begins a turn or a text."""
BEGINNINGS = """
    <s> <bos> <|begin_of_text|> <｜begin▁of▁sentence｜> <|startoftext|> <seed:bos> [gMASK]<sop>
"""
"""What may stand in front of an answer."""

_END, _HEADER, _BEGINNING = ("|".join(map(re.escape, texts.split())) for texts in (ENDS, HEADERS, BEGINNINGS))
_BEFORE = re.compile(rf"\s*(?:{_BEGINNING})+[ ]?")
_LEAK = re.compile(
    rf"(?P<end>{_END})(?=\s*(?:\Z|{_END}|{_HEADER}|<s>|\n\s*(?:user|human|assistant|system)\b))"
    rf"|(?:^|(?<=[.!?)…。！？\n]))[ ]*(?P<header>{_HEADER}|{_END})", re.IGNORECASE)
_CODE = re.compile(r"```.*?```|~~~.*?~~~|`[^`\n]*`|\"[^\"\n]*\"|'[^'\n]*'", re.DOTALL)
_TOKEN = re.compile(rf"{_END}|{_HEADER}")


def without_leak(text: str) -> str:
    """The text up to the control text that leaked into it."""
    before = _BEFORE.match(text)
    if before and not ("<s>" in before[0] and "</s>" in text.rstrip().removesuffix("</s>")):  # HTML's strikethrough
        text = text[before.end():]
    if not _TOKEN.search(text):
        return text
    code = [match.span() for match in _CODE.finditer(text)]
    if any(_TOKEN.search(text, *span) for span in code):  # the text is about such tokens: only its very end can be a leak
        code.append((0, len(text.rstrip()) - max(map(len, ENDS.split()))))
    for leak in _LEAK.finditer(text):
        if any(begin <= leak.start() < end for begin, end in code):
            continue
        return text[:leak.start()].rstrip() if _is_leak(text[:leak.start()], leak) else text
    return text


def _is_leak(said: str, leak: re.Match[str]) -> bool:
    if re.search(r"(?:^|\n)\s*(?:[-*•]|\d+[.)])\s*$", said) and leak.string[leak.end():].strip():  # an item of a list
        return False
    if leak["header"]:  # not an example that a colon introduces, nor a word of the text
        return bool(said.strip()) and not said.rstrip().endswith(":") and leak["header"] not in said and not (
            leak["header"] in ENDS.split() and re.match(r" [a-z]", leak.string[leak.end():]))
    if leak["end"] == "</s>" and said.count("<s>") > said.count("</s>"):  # HTML's strikethrough
        return False
    talked = _TOKEN.search(_CODE.sub("", said))
    return not talked and not (said[-1:] in (" ", "\t") and said.rstrip()[-1:].isalnum())  # "... ends with </s>"
