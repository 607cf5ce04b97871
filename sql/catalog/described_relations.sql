-- Tables of rows and current datasets, which a report on the data describes.
-- needs: datasets, relations
-- parameters: $tables
-- makes: rows (relation, comment)
select relations.relation, relations.comment
from relations
where list_contains($tables, relations.relation)
    or relations.relation in (select datasets.relation from datasets where datasets.is_current)
order by not list_contains($tables, relations.relation), relations.relation
