-- Objects that wait to be read, in reading order.
-- needs: ledger
-- parameters: $dayless, $days, $sources
-- makes: temp table waiting_objects (place, source, uri)
create or replace temp table waiting_objects as
select row_number() over (order by days, source, uri) as place, source, uri
from ledger
where state <> 'read'
    and list_contains($sources, source)
    and ($days is null or list_has_any(days, $days))
    and not ($dayless and len(days) > 0)
