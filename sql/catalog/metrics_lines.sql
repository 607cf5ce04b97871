-- Lines of every version's metrics.jsonl, one JSON object for each logged step. Lines that are not JSON are left out.
-- placeholders: files
-- makes: view metrics_lines (path, line)
create view metrics_lines as
select regexp_extract(filename, '([^/]+/[^/]+/[^/]+/[^/]+)/[^/]+$', 1) as path, json as line
from read_ndjson_objects([{files}], filename = true, ignore_errors = true)
