-- Renames a moved object in the entries of its partners.
-- needs: ledger, moved
-- makes: update of ledger (partners)
update ledger
set partners = renamed.partners
from (
    select held.uri, list(coalesce(moved.uri, held.other) order by coalesce(moved.uri, held.other)) as partners
    from (select uri, unnest(partners) as other from ledger) as held
    left join moved on moved.old_uri = held.other
    group by held.uri
    having count(moved.uri) > 0
) as renamed
where ledger.uri = renamed.uri
