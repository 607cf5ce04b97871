"""Requests and responses of other chat APIs as OpenAI chats: Anthropic's Messages, OpenAI's Responses, and what both share.

`anthropic_api.py` and `responses_api.py` read what was logged or asked; `blocks.py` has turns of content blocks, which further
APIs use (resources/records/providers). `finish_reasons.py` knows why a model stopped, whatever wrote it; `valid_json.py` writes
JSON that is valid text. Nothing here knows of logs, tables or models.
"""

from typing import TYPE_CHECKING

from model_ops.door import door

if TYPE_CHECKING:
    from model_ops.chat_apis import anthropic_api, responses_api
    from model_ops.chat_apis.blocks import (
        Turn,
        UnknownBlock,
        bodies,
        body,
        chosen_tool,
        content_of,
        dialogue,
        finish_reason,
        function_tool,
        given,
        inline_url,
        is_pair,
        mapping,
        media,
        objects,
        plus,
    )
    from model_ops.chat_apis.finish_reasons import CUT, WHOLE, finish_reason_of
    from model_ops.chat_apis.valid_json import json_text, mended, whole

__getattr__, __dir__, __all__ = door(__name__, __file__)
