-- Number of replaced values by kind.
-- needs: facts
-- makes: rows (kind, values_replaced)
with replaced as (select unnest(map_entries(pii)) as entry from facts)
select entry.key as kind, sum(entry.value)::bigint as values_replaced from replaced group by kind order by kind
