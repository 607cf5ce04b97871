"""From the bytes of a log object to checked rows. objects/ splits any container into records, formats.py recognises them,
providers/ turns APIs of providers into OpenAI messages, and extraction.py runs the format's SQL. Nothing here knows of tables.
"""

from typing import TYPE_CHECKING

from model_ops.door import door

if TYPE_CHECKING:
    from resources.records import field_mapping, json_paths, streams, synonyms
    from resources.records.example_prompts import CHOICES, lines_of
    from resources.records.extraction import LINES, Extraction
    from resources.records.field_mapping import FieldMapping
    from resources.records.formats import BY_NAME, CAPTURE_NOTE_KEY, FORMATS, Format, detect
    from resources.records.mapped_records import by_fields, mapped_format, wrapped_fields
    from resources.records.moments import is_moment
    from resources.records.objects.csv_reader import dialect_of
    from resources.records.objects.log_reader import LONGEST_BYTES, RAW_BYTES, RecordProblem, Records, record_of
    from resources.records.objects.object_reader import read_object
    from resources.records.plain_text import escaped_json, page_environment, visible
    from resources.records.polarity import SAID, good_end, is_known, thumb_of
    from resources.records.providers.otlp import shown_attributes

__getattr__, __dir__, __all__ = door(__name__, __file__)
