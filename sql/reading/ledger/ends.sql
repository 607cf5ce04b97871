-- Of each source with more than $count objects that were read: the uri after which its last $count come.
-- needs: objects
-- parameters: $count
-- makes: rows (source, after)
with newest as (
    select source, max(uri, cast($count as bigint) + 1) as uris from objects where state = 'read' group by source
)
select source, uris[-1] as after from newest where len(uris) > $count
