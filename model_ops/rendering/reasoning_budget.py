"""Length control: closes reasoning at a budget of tokens, so that a model learns when to stop, and no more of it.

    budget = ReasoningBudget(2_000)
    budget.closed(row, turn, tokens, encoder)       # TurnTokens with `learnt`
    budget.check(rows, template)                    # ModelError if no reasoning was longer

Of an answer with longer reasoning the first tokens of the reasoning are context, the closing mark follows as the chat template
writes it, and then the answer. Learnt are the closing mark and the end of turn, as in the second stage of Hermes 4 (arXiv
2508.18255). Where the token limit ended the reasoning, no answer follows and the closing mark alone is learnt: a model that
learnt an end of turn there would give empty answers.
"""

from bisect import bisect_left
from dataclasses import dataclass, replace

import numpy as np

from model_ops.jobs import ModelError
from model_ops.rendering.chat_template import ChatTemplate
from model_ops.rendering.row import Row
from model_ops.rendering.server_messages import LEARNT_CUT, says_nothing, without_reasoning
from model_ops.rendering.thought_marks import MARKS
from model_ops.rendering.tokens import Ids, TurnEncoder, TurnTokens
from model_ops.rendering.turns import LearntTurn


@dataclass
class ReasoningBudget:
    """Closes reasoning after `tokens` tokens; counts answers with reasoning, closed ones, and the longest's tokens."""

    tokens: int
    reasoning_answers: int = 0
    closed_answers: int = 0
    longest_reasoning: int = 0

    def closed(self, row: Row, turn: LearntTurn, tokens: TurnTokens, encoder: TurnEncoder) -> TurnTokens:
        """The turn with its reasoning closed if it is longer than the budget; else the turn with nothing to learn."""
        nothing, answer = replace(tokens, learnt=np.zeros(len(tokens.answer), dtype=bool)), tokens.answer
        marks = _marks(turn, ChatTemplate.of(encoder.tokenizer))
        if marks is None:
            return nothing
        begin, space, end = marks
        start, stop = _through(begin, answer, encoder) if begin else 0, _through(end, answer, encoder)
        length = stop - start - len(_within_text(space + end, encoder))
        self.reasoning_answers += 1
        self.longest_reasoning = max(self.longest_reasoning, length)
        if length <= self.tokens:
            return nothing
        self.closed_answers += 1
        thought = answer[: start + self.tokens]
        while encoder.tokenizer.decode(thought[-4:]).endswith("\ufffd"):  # never within the bytes of a character
            thought = thought[:-1]
        last_token = encoder.tokenizer.decode(answer[start:stop]).partition(end)[2]  # may hold more than the mark
        mark = _within_text(space + end + last_token, encoder)
        message = row.messages[turn.message]
        is_answered = not says_nothing(without_reasoning(message))
        whole = np.concatenate([thought, mark, answer[stop:] if is_answered else mark[:0]])
        learnt = np.arange(len(whole)) >= len(thought)
        learnt[len(thought) + len(mark) :] = False
        learnt[-1] |= is_answered and not message.get(LEARNT_CUT)
        return TurnTokens(tokens.prompt, whole, learnt)

    def check(self, rows: int, template: ChatTemplate) -> None:
        """Raises ModelError if no reasoning of the rows was longer than the budget."""
        if self.reasoning_answers and not self.closed_answers:
            raise ModelError(
                f"reasoning_budget is {self.tokens}, and the longest reasoning of {self.reasoning_answers} answers has "
                f"{self.longest_reasoning} tokens, so there is nothing to close: set it below {self.longest_reasoning}, add "
                "rows with longer reasoning, or leave it out"
            )
        if not self.reasoning_answers:
            marked = "a model whose chat template has marks such as <think>"
            raise ModelError(
                f"reasoning_budget needs reasoning, and none of {rows} training rows has an answer with any, as the model's "
                f"chat template writes it: take {'rows with reasoning' if template.reasoning_block else marked}, or leave "
                "reasoning_budget out"
            )


def unfinished_reasoning(row: Row) -> Row:
    """The row in a form that is rendered where the token limit ended an answer within its reasoning."""
    messages = [
        {**message, LEARNT_CUT: None} if says_nothing(without_reasoning(message)) else message for message in row.messages
    ]
    return replace(row, messages=messages)


def _marks(turn: LearntTurn, template: ChatTemplate) -> tuple[str, str, str] | None:
    """Of an answer's reasoning: its beginning mark ("" if the prompt has it), the white space before its closing mark, and that
    mark; None without reasoning."""
    written = template.reasoning_block or ("", "")
    for begin, end in (*MARKS, (written[0].strip(), written[1].strip())):
        is_open = turn.context.rstrip().endswith(begin)
        if end and end in turn.answer and (is_open or turn.answer.lstrip().startswith(begin)):
            before = turn.answer.partition(end)[0]
            return "" if is_open else begin, before[len(before.rstrip()) :], end
    return None


def _through(text: str, ids: Ids, encoder: TurnEncoder) -> int:
    """Number of first tokens up to the end of a text; all, if they lack it (served ids that the token limit ended)."""
    tokenizer = encoder.tokenizer
    token = tokenizer.convert_tokens_to_ids(text)
    if token is not None and tokenizer.convert_ids_to_tokens(token) == text:
        return int(np.argmax(ids == token)) + 1 if (ids == token).any() else len(ids)
    return bisect_left(range(len(ids)), True, key=lambda count: text in tokenizer.decode(ids[:count]))


def _within_text(text: str, encoder: TurnEncoder) -> Ids:
    """Tokens of a text that follows others: some tokenizers write a space before the first word."""
    return np.array(encoder.prompt("a" + text)[len(encoder.prompt("a")) :], dtype=np.int32)
