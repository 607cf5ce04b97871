-- Lines and files that could not become rows, by code and reason, with the first place of each. A message is "reason; remedy";
-- a count in it (after element 17) differs from place to place, and is no reason of its own.
with told as (
    select *, regexp_replace(split_part(message, ';', 1), ' [0-9]+', ' #', 'g') as reason
    from quarantine
)

select
    error_code as code, count(*) as lines, count(*) filter (source_row = 0) as files,
    arg_min(printf('%s:%d', source_uri, source_row), (source_uri, source_row)) as first_place,
    arg_min(message, (source_uri, source_row)) as message
from told
group by error_code, reason
order by lines desc, code, first_place
