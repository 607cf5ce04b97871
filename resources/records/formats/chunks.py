"""Lines of chat.completion.chunk objects, as a proxy logs what it streams.

Chunks with one id are one answer, wherever they are in the file. The request is in one of them (`request`), or in a line
{request, id} before them. `resources.records.streams` joins them into request-response pairs.
"""

from __future__ import annotations

from resources.records.formats.format import Format
from resources.records.streams import is_chunk

FORMAT = Format("chunks", is_chunk, streamed=True, rows_as="openai_pairs")
