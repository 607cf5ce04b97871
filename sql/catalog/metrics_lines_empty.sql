-- `metrics_lines` for a lake without metrics.jsonl: the columns, no rows.
-- makes: view metrics_lines (path, line)
create view metrics_lines as
select ''::varchar as path, '{}'::json as line where false
