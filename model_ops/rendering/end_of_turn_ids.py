"""Token ids at which a model's turns end, as its chat template writes them.

    end_of_turn_ids(tokenizer)         # [151645]
"""

from __future__ import annotations

from transformers import PreTrainedTokenizerBase

from model_ops.rendering.chat_template import ChatTemplate, Unrenderable
from model_ops.rendering.learnt_turns import learnt_turns
from model_ops.rendering.row import Row
from model_ops.rendering.tokens import TurnEncoder

TOOLS = [{"type": "function", "function": {
    "name": "look", "description": "d", "parameters": {"type": "object", "properties": {}}}}]
ENDED = ({"role": "assistant", "content": "b"},
         {"role": "assistant", "content": "", "tool_calls": [
             {"id": "call12345", "type": "function", "function": {"name": "look", "arguments": "{}"}}]})
"""Answers whose ends of turn are looked for."""


def end_of_turn_ids(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Ids of the special tokens that end answers and tool calls, where generation must stop; [] if there is none, no template,
    or a template that refuses a single question and answer."""
    if not tokenizer.chat_template:
        return []
    template, encoder, found = ChatTemplate.of(tokenizer), TurnEncoder(tokenizer), []
    for answer in ENDED:
        row = Row("probe", [{"role": "user", "content": "a"}, answer], TOOLS if "tool_calls" in answer else None)
        try:
            found += [int(turn.answer[-1]) for turn in encoder.turns([learnt_turns(row, template)])[0] if len(turn.answer)]
        except Unrenderable:  # the template needs rows of another form, so its end of turn is unknown
            continue
    return [token for token in dict.fromkeys(found) if tokenizer.convert_ids_to_tokens(token) in encoder.specials]
