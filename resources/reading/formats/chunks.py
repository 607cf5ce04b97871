"""Lines of chat.completion.chunk objects, as a proxy that logs what it streams writes them.

Chunks of one id are one answer, whether they stand together or not; the request stands on one of them (`request`), or on
a line {request, id} before them. Put together by `resources.reading.streams`, they are request and response pairs.
"""

from __future__ import annotations

from resources.reading.formats.format import Format
from resources.reading.streams import is_chunk

FORMAT = Format("chunks", is_chunk, streamed=True, rows_as="openai_pairs")
