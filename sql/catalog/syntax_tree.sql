-- A query as DuckDB's parser understands it: JSON; {"error": true, ...} of what it cannot write down (pivot).
select json_serialize_sql($text::varchar) as tree
