"""Rows as a server renders them: the prompt from the chat template, what a model learns after it, and the token ids of both.

Start with `chat_template.py`, then `turns.py` (what is learnt after a prompt) and `tokens.py`. Exact served ids win over text.
"""

from typing import TYPE_CHECKING

from model_ops.door import door

if TYPE_CHECKING:
    from model_ops.rendering import server_messages
    from model_ops.rendering.chat_template import ChatTemplate, Unrenderable, special_tokens
    from model_ops.rendering.contexts import ReasoningBudget, RenderedRow, rendered_rows
    from model_ops.rendering.endpoint_tokens import PADDED, EndpointTokens
    from model_ops.rendering.picture import Picture
    from model_ops.rendering.row import (
        LEARNT_REQUEST,
        ROWS_AT_ONCE,
        RenderingSettings,
        Row,
        Split,
        iterate_rows,
        read_rows,
        request_of,
    )
    from model_ops.rendering.tokens import Context, ServedTokens, TurnEncoder, end_of_turn_ids
    from model_ops.rendering.turns import learnt_turns

__getattr__, __dir__, __all__ = door(__name__, __file__)
