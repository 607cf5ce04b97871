"""From the bytes of a log object to checked rows. objects/ splits any container (JSONL, JSON, CSV, Parquet, vLLM's log;
compressed or not) into records; formats/ has one small file for each log format, which says how to recognise it; providers/
turns the APIs of Anthropic, Gemini, Bedrock and others into OpenAI messages; extraction.py runs the format's SQL. A new log
format goes into formats/ and sql/reading/formats/. Nothing here knows of tables. Start with formats/__init__.py and
extraction.py.
"""

from typing import TYPE_CHECKING

from model_ops.door import door

if TYPE_CHECKING:
    from resources.records import field_mapping, json_paths, streams, synonyms
    from resources.records.choices import CHOICES, lines_of
    from resources.records.extraction import LINES, Extraction
    from resources.records.field_mapping import FieldMapping
    from resources.records.formats import BY_NAME, FORMATS, detect
    from resources.records.formats.capture_note import CAPTURE_NOTE_KEY
    from resources.records.formats.format import Format
    from resources.records.mapped_records import by_fields, mapped_format, wrapped_fields
    from resources.records.moments import is_moment
    from resources.records.objects.log_reader import LONGEST_BYTES, RAW_BYTES, RecordProblem, Records, record_of
    from resources.records.objects.object_reader import read_object
    from resources.records.plain_text import escaped_json, page_environment, visible
    from resources.records.polarity import SAID, good_end, is_known, thumb_of
    from resources.records.providers.otlp import shown_attributes

__getattr__, __dir__, __all__ = door(__name__, __file__)
