-- Lines that could not become rows, by code, with the first place of each.
select
    error_code as code, count(*) as lines, arg_min(printf('%s:%d', source_uri, source_row), (source_uri, source_row)) as first_place,
    arg_min(message, (source_uri, source_row)) as message
from quarantine
group by error_code
order by lines desc, code
