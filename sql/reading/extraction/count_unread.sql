-- Counts keys that nothing reads, and names that contradict each other, in the records that became rows.
-- needs: beside, staged, unread_keys
-- makes: rows into unread_keys (object, kind, path, other, records)
insert into unread_keys
with told as (
    select object, row, unnest(unread) as words, 'unread' as kind from beside
    union all
    select object, row, unnest(clashes) as words, 'clash' as kind from beside
)

select
    object,
    kind,
    split_part(words, chr(9), 1) || case when kind = 'clash' then concat(chr(9), split_part(words, chr(9), 2)) else '' end as path,
    split_part(words, chr(9), case kind when 'clash' then 3 else 2 end) as other,
    count(*) as records
from told
semi join (select object, row from staged where error_code is null) as whole using (object, row)
group by all
