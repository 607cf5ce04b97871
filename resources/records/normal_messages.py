"""Messages as the OpenAI API has them, whatever server wrote them: calls, ShareGPT's turns, and answers without leaked control
text ("Lake Como.<|eot_id|>..."), which stays in code, quotes, a list, or before words about it. A call of a custom tool is one
of a function with the argument `input`. DuckDB calls normal_messages and call_turns; they never raise."""

import json
import re
from typing import Any

from model_ops.chat_apis import json_text

_THOUGHT = re.compile(r"\A\s*(?:\[THINK\](.*?)\[/THINK\]|<thought>(.*?)</thought>|◁think▷(.*?)◁/think▷)", re.DOTALL)
"""Reasoning at the beginning of an answer, in other marks than <think>."""


def normal_messages(text: str) -> str:
    try:
        value = json.loads(text)
        for message in value if isinstance(value, list) else [value]:
            if isinstance(message, dict):
                for holder in _callers(message):
                    given = holder.get("arguments")
                    if given is None or (isinstance(given, str) and given.strip() in ("", "null")):
                        holder["arguments"] = "{}"
                    elif not isinstance(given, str):
                        holder["arguments"] = json_text(given)
                if message is value or message.get("role") == "assistant":
                    _cut(message)
                if message is value and isinstance(content := message.get("content"), str):
                    message["content"] = _with_think(content)
        return json_text(value)
    except (ValueError, RecursionError):  # too deep, or numbers out of range: no list of messages, so it goes to quarantine
        return "0"


def _callers(message: dict[str, Any]) -> list[dict[str, Any]]:
    calls = message.get("tool_calls")
    calls = [call for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []
    for call in calls:
        if isinstance(custom := call.pop("custom", None), dict):
            arguments = {"input": custom.get("input") or ""}
            call |= {"type": "function", "function": {"name": custom.get("name"), "arguments": arguments}}
    functions = [call.get("function") for call in calls]
    return [holder for holder in [*functions, message.get("function_call")] if isinstance(holder, dict)]


def _with_think(content: str) -> str:
    """The answer with its reasoning within <think>, whatever marks it; the prompt may have held the first mark."""
    thought, mark, answer = content.partition("</think>")
    if (
        mark
        and thought.strip()
        and "think>" not in thought + answer
        and re.match(r"\s*\n\s*\S", answer)
        and not thought.endswith(("`", '"', "'", " "))
    ):
        return "<think>" + content
    return _THOUGHT.sub(lambda match: f"<think>{match[match.lastindex or 1]}</think>", content)


def _cut(message: dict[str, Any]) -> None:
    content = message.get("content")
    if isinstance(content, str):
        message["content"] = without_leak(content)
    for part in content if isinstance(content, list) else ():
        if isinstance(part, dict) and isinstance(part.get("text"), str):
            part["text"] = without_leak(part["text"])


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
_PART = re.compile(rf"```.*?```|~~~.*?~~~|`[^`\n]*`|\"[^\"\n]*\"|(?<!\w)[bfru]?'[^'\n]*'(?!\w)|<s>|{_TOKEN.pattern}", re.DOTALL)
"""Code, words in quotes, and control text outside of them."""
_ROLE = r"(?i:user|human|assistant|system|model|tool|ipython)\b"
_TURN = re.compile(rf"(?:\n\s*)?{_ROLE}|\s*(?:{_HEADER})|\s*<s>\s*\[INST\]")
_NEXT = re.compile(rf"\s*(?:\Z|{_END}|{_HEADER}|<s>)|(?:\n\s*)?{_ROLE}")
_ABOUT = re.compile(
    r"(?i)\b(?:special|[bep]os\b|chat ?ml|prompts?\b|templates?\b|turns?\b|sequences?\b|stop)"
    "|token|токен|标[记签]|トークン|토큰"
)
"""Words of a text that is about control text."""
_INTO = re.compile(
    r"(?i)(?:[:=|(,]|\b(?:a|an|and|are|as|be|by|called|emits?|has|have|in|into|is|it's|like|of|or|sends?|the|to|uses?|with|writes?|"
    r"als|das|der|die|est|et|ist|le|mit|oder|par|und|y|с|это))\s+\Z"
)
"""What leads to a token that a text names."""
_SAYS = re.compile(r"[ \t]*(?:[-=→–—:|,.;/(\d]|[ ](?:[a-z]+s|and|are|or|to|will)\b)")
"""What follows a token that a text names."""


def without_leak(text: str) -> str:
    """The text up to the control text that leaked into it."""
    before = _BEFORE.match(text)
    if before and not ("<s>" in before[0] and "</s>" in text.rstrip().removesuffix("</s>")):  # HTML's strikethrough
        text = text[before.end() :]
    if not _TOKEN.search(text):
        return text
    struck = 0  # HTML's strikethrough
    for part in _PART.finditer(text):
        if part[0] == "<s>":
            struck += 1
        elif part[0] == "</s>" and struck:
            struck -= 1
        elif part["token"]:  # the first one tells what the text is
            said = text[: part.start()]
            return said.rstrip() if _is_leak(said, part, text[part.end() :]) else text
    return text


def _is_leak(said: str, token: re.Match[str], rest: str) -> bool:
    near, blank = said[-300:], said[-1:] in (" ", "\t")
    is_item = re.search(r"(?:^|\n)\s*(?:[-*•]|\d+[.)])\s*$", near) and rest.strip()
    if is_item or _INTO.search(near):
        return False
    about = _ABOUT.search(near)
    if _TOKEN.search(said):  # it names such tokens in code: only its very end, or a whole turn, is a leak
        return bool(token["end"]) and not blank and bool(not rest.strip() or _TURN.match(rest))
    if (
        token["end"]
        and _NEXT.match(rest)
        and not (blank and re.search(r"\w\s*\Z", near) and (about or (rest.strip() and not _TURN.match(rest))))
    ):
        return True
    if about or _SAYS.match(rest) or (rest[:1] == " " and rest[1:2].islower() and token["token"] != "[INST]"):
        return False
    if token["end"] and re.match(r"\n|[^\W\d_]", rest) and re.search(r"[\w.!?…*)\]}\"'`]\Z", near):
        return rest[:1] == "\n" or rest[:1].isupper()
    return bool(said.strip()) and not said.rstrip().endswith(":") and bool(re.search(r"[.!?)…。！？\n][ ]*\Z", near))


CALLERS = {"function_call", "tool_call", "function_calls", "tool_calls"}
RESULTS = {"tool", "observation", "observations", "function", "function_response", "tool_response"}
SPEAKERS = {"gpt", "assistant", "chatgpt", "bot", "model", "ai"}


def call_turns(text: str) -> str:
    try:
        messages = json.loads(text)
        return json_text(_turned(messages if isinstance(messages, list) else [messages]))
    except (ValueError, RecursionError):
        return text


def _turned(messages: list[Any]) -> list[Any]:
    turns: list[Any] = []
    waiting: list[str] = []  # ids of calls without a result
    count = 0
    for place, message in enumerate(messages):
        speaker = _speaker(message)
        if speaker in CALLERS:
            calls = _calls(message.get("value"), count)
            if calls is None:
                turns.append({"content": message.get("value")})
                continue
            count += len(calls)
            if not (turns and _speaker(messages[place - 1]) in CALLERS and "tool_calls" in turns[-1]):
                waiting = []
                turns.append(_begun(turns, messages[place - 1] if place else None))
            turns[-1]["tool_calls"] += calls
            waiting += [call["id"] for call in calls]
        elif speaker in RESULTS:
            values = [message.get("value")]
            if _speaker(messages[place + 1] if place + 1 < len(messages) else None) not in RESULTS:
                values = _each(message.get("value"), len(waiting))
            for value in values:
                answered = message.get("tool_call_id") or (waiting.pop(0) if waiting else "call_0")
                turns.append({"role": "tool", "content": value, "tool_call_id": answered})
        else:
            turns.append(message)
    return turns


def _begun(turns: list[Any], before: Any) -> dict[str, Any]:
    """The turn of a first call: that of the assistant's text right before it, if any."""
    if _speaker(before) in SPEAKERS and "weight" not in before and isinstance(before.get("value"), str) and turns[-1] is before:
        turns.pop()
        return {"role": "assistant", "content": before["value"], "tool_calls": []}
    return {"role": "assistant", "content": None, "tool_calls": []}


def _speaker(message: Any) -> str | None:
    return str(message["from"]).strip().lower() if isinstance(message, dict) and "from" in message else None


def _calls(value: Any, before: int) -> list[dict[str, Any]] | None:
    listed = _parsed(value)
    listed = listed if isinstance(listed, list) else [listed]
    calls = []
    for number, each in enumerate(listed, before + 1):
        call = each if isinstance(each, dict) else {}
        function = call["function"] if isinstance(call.get("function"), dict) else call
        if not isinstance(function.get("name"), str):
            return None
        written = [function[key] for key in ("arguments", "parameters", "args") if function.get(key) is not None]
        arguments = written[0] if written else {}
        calls.append(
            {
                "id": str(call.get("id") or f"call_{number}"),
                "type": "function",
                "function": {
                    "name": function["name"],
                    "arguments": arguments if isinstance(arguments, str) else json_text(arguments),
                },
            }
        )
    return calls or None


def _parsed(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        lines = [line for line in value.splitlines() if line.strip()]
        try:
            return [json.loads(line) for line in lines]
        except ValueError:
            return None


def _each(value: Any, count: int) -> list[Any]:
    listed = _parsed(value) if count > 1 else None
    if not isinstance(listed, list) or len(listed) != count:
        return [value]
    return [each if isinstance(each, str) else json_text(each) for each in listed]
