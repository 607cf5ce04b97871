-- Number of tombstones that were made with another key than this one.
-- needs: erasures
-- parameters: $key_check
-- makes: rows (tombstones)
select count(*) as tombstones
from erasures
where key_check is not null and key_check <> $key_check
