"""Serves releases. `millrace serve` (endpoint_server.py) starts the release that an alias names, tries it on a smoke set and
switches to it without a lost request; follow.py follows the alias. Releases of form adapter share one server on their base
model. chat/ is `millrace chat`: the project's own decoder in a process, in the terminal or on a page. The HTTP front and the
capture of traffic are in gateway/. Start with endpoint_server.py."""

from typing import TYPE_CHECKING

from model_ops.door import door

if TYPE_CHECKING:
    from resources.serving.chat.page import ChatExchange, NotRatableError, chat_page, keep_rating, ratable_in
    from resources.serving.chat.talking import Message, Question, Talking, find_speaker, start_talking
    from resources.serving.endpoint_server import TrafficSettings, require_servable, serve
    from resources.serving.programs import find_program
    from resources.serving.release_server import ServeSettings

__getattr__, __dir__, __all__ = door(__name__, __file__)
