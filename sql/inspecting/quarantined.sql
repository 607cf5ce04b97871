-- Lines and files in quarantine by code and reason, each with the first place. A message is "reason; remedy"; numbers in a
-- reason (after element 17) are ignored in the grouping.
-- needs: quarantine
-- makes: rows (code, lines, files, first_place, message)
with conversations_read as (
    select *, regexp_replace(split_part(message, ';', 1), ' [0-9]+', ' #', 'g') as reason
    from quarantine
)

select
    error_code as code, count(*) as lines, count(*) filter (source_row = 0) as files,
    arg_min(printf('%s:%d', source_uri, source_row), (source_uri, source_row)) as first_place,
    arg_min(message, (source_uri, source_row)) as message
from conversations_read
group by error_code, reason
order by lines desc, code, first_place
