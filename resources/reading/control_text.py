"""Cuts an answer at control text of another model that leaked into it, whatever family the log's model was of.

    without_leak("Mars.</s>")                                                  # "Mars."
    without_leak("Lake Como.<|eot_id|><|start_header_id|>user ...")            # "Lake Como."
    without_leak("Each turn of ChatML ends with `<|im_end|>`.")                # unchanged: the text is about the token

A leak is an end of turn at the end of the text or before a role or more control text, or any control text right after a
sentence or a line. What stands in code or quotes, in a list, in the middle of a sentence, or before words about it is about
control text and stays.
"""

from __future__ import annotations

import re

# ruff: noqa: RUF001 (DeepSeek's bars)
ENDS = """
    <|im_end|> <|endoftext|> </s> <|eot_id|> <|eom_id|> <|end_of_text|> <|eot|> <|eom|> <end_of_turn> <eos> <turn|>
    <|end|> <|return|> <|call|> <｜end▁of▁sentence｜> <|end▁of▁sentence|> <|end_of_sentence|> <|END_OF_TURN_TOKEN|>
    <|END_RESPONSE|> <|END_OF_TEXT|> <|end_of_turn|> <|endofturn|> [|endofturn|] <|assistant_end|> <|EOT|> <|eos|>
    <|end_of_message|> <|message_sep|> <eoa> <seed:eos> [e~[ <|hy_eos|> <|endofprompt|> <pad> <|pad|> <|tool_response> [/INST]
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
_END += r"|<\|reserved\w*\|>|<unused\d+>|<SPECIAL_\d+>|<\|(?:file_sep(?:arator)?|fim_\w+|repo_name)\|>"
_BEFORE = re.compile(rf"\s*(?:{_BEGINNING})+[ ]?")
_TOKEN = re.compile(rf"(?=[<\[\]])(?P<token>(?P<end>{_END})|{_HEADER})")
_PART = re.compile(
    rf"```.*?```|~~~.*?~~~|`[^`\n]*`|\"[^\"\n]*\"|(?<!\w)[bfru]?'[^'\n]*'(?!\w)|<s>|{_TOKEN.pattern}", re.DOTALL)
"""Code, words in quotes, and control text outside of them."""
_ROLE = r"(?i:user|human|assistant|system|model|tool|ipython)\b"
_TURN = re.compile(rf"(?:\n\s*)?{_ROLE}|\s*(?:{_HEADER})|\s*<s>\s*\[INST\]")
_NEXT = re.compile(rf"\s*(?:\Z|{_END}|{_HEADER}|<s>)|(?:\n\s*)?{_ROLE}")
_ABOUT = re.compile(r"(?i)\b(?:special|[bep]os\b|chat ?ml|prompts?\b|templates?\b|turns?\b|sequences?\b|stop)"
                    "|token|токен|标[记签]|トークン|토큰")
"""Words of a text that is about control text."""
_INTO = re.compile(
    r"(?i)(?:[:=|(,]|\b(?:a|an|and|are|as|be|by|called|emits?|has|have|in|into|is|it's|like|of|or|sends?|the|to|uses?|with|writes?|"
    r"als|das|der|die|est|et|ist|le|mit|oder|par|und|y|с|это))\s+\Z")
"""What leads to a token that a text names."""
_SAYS = re.compile(r"[ \t]*(?:[-=→–—:|,.;/(\d]|[ ](?:[a-z]+s|and|are|or|to|will)\b)")
"""What follows a token that a text names."""


def without_leak(text: str) -> str:
    """The text up to the control text that leaked into it."""
    before = _BEFORE.match(text)
    if before and not ("<s>" in before[0] and "</s>" in text.rstrip().removesuffix("</s>")):  # HTML's strikethrough
        text = text[before.end():]
    if not _TOKEN.search(text):
        return text
    struck = 0  # HTML's strikethrough
    for part in _PART.finditer(text):
        if part[0] == "<s>":
            struck += 1
        elif part[0] == "</s>" and struck:
            struck -= 1
        elif part["token"]:  # the first one tells what the text is
            said = text[:part.start()]
            return said.rstrip() if _is_leak(said, part, text[part.end():]) else text
    return text


def _is_leak(said: str, token: re.Match[str], rest: str) -> bool:
    near, blank = said[-300:], said[-1:] in (" ", "\t")
    is_item = re.search(r"(?:^|\n)\s*(?:[-*•]|\d+[.)])\s*$", near) and rest.strip()
    if is_item or _INTO.search(near):
        return False
    about = _ABOUT.search(near)
    if _TOKEN.search(said):  # it names such tokens in code: only its very end, or a whole turn, is a leak
        return bool(token["end"]) and not blank and bool(not rest.strip() or _TURN.match(rest))
    if token["end"] and _NEXT.match(rest) and not (blank and re.search(r"\w\s*\Z", near) and (
            about or (rest.strip() and not _TURN.match(rest)))):
        return True
    if about or _SAYS.match(rest) or (rest[:1] == " " and rest[1:2].islower() and token["token"] != "[INST]"):
        return False
    if token["end"] and re.match(r"\n|[^\W\d_]", rest) and re.search(r"[\w.!?…*)\]}\"'`]\Z", near):
        return rest[:1] == "\n" or rest[:1].isupper()
    return bool(said.strip()) and not said.rstrip().endswith(":") and bool(re.search(r"[.!?)…。！？\n][ ]*\Z", near))
