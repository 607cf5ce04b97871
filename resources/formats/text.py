"""Plain text to learn as it stands: lines of {text}, or, where the recipe names the format, a whole .txt or .md file.

Such a row has no request; every token of it is learnt, without a chat template. Its status is `text`. A file that is no
JSON is taken as text only where the recipe says `format: text`: broken JSON must not be swallowed as prose.
"""

from __future__ import annotations

from resources.formats.format import Format


def recognises(record: dict) -> bool:
    return isinstance(record.get("text"), str) and not {"prompt", "question", "instruction"} & record.keys()


FORMAT = Format("text", recognises, plain_text=True)
