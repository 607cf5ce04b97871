"""Requests and responses of Anthropic's Messages and OpenAI's Responses API as OpenAI chats. Nothing here knows of logs, tables
or models."""

from typing import TYPE_CHECKING

from model_ops.door import door

if TYPE_CHECKING:
    from model_ops.chat_apis import anthropic_api, responses_api
    from model_ops.chat_apis.blocks import (
        CUT,
        WHOLE,
        Turn,
        UnknownBlock,
        bodies,
        body,
        chosen_tool,
        content_of,
        dialogue,
        finish_reason,
        finish_reason_of,
        function_tool,
        inline_url,
        is_pair,
        json_text,
        mapping,
        media,
        mend_json,
        objects,
        plus,
        whole,
        without_none,
    )

__getattr__, __dir__, __all__ = door(__name__, __file__)
