-- The first rows of a relation.
-- needs: <relation>
-- placeholders: relation
-- parameters: $rows
-- makes: rows (*)
from {relation} limit $rows
