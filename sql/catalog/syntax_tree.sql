-- DuckDB's syntax tree of a query as JSON; {"error": true, ...} where it cannot be written as JSON (pivot).
-- parameters: $text
-- makes: rows (tree)
select json_serialize_sql($text::varchar) as tree
