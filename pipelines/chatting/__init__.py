"""`millrace chat` in a terminal: reads questions, prints answers as they grow, takes thumbs. Processes and the page are in
resources/serving/chat.
"""

from typing import TYPE_CHECKING

from model_ops.door import door

if TYPE_CHECKING:
    from pipelines.chatting.conversation import TerminalChat

__getattr__, __dir__, __all__ = door(__name__, __file__)
