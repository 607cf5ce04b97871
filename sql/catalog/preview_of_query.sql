-- The first rows of a query that is in our code.
-- needs: <query>
-- placeholders: query
-- parameters: $rows
-- makes: rows (*)
from ({query}) limit $rows
