-- A metric's name from its path in a JSON document: metric_name('$.records.dropped."too.short"[0]') is
-- records/dropped/too.short/0.
-- makes: macro metric_name(json_path)
create macro metric_name(json_path) as
    regexp_replace(
        regexp_replace(json_path[2:], '\.("([^"]*)"|([^.\[]+))', '/\2\3', 'g'), '\[(\d+)\]', '/\1', 'g'
    )[2:]
