-- Statistics of a relation's columns: type, smallest and largest value, distinct values (approximate), mean, nulls.
-- needs: <relation>
-- placeholders: relation
-- makes: rows (column_name, column_type, least, most, distinct_values, mean, null_percent, row_count)
select
    column_name, column_type, min as least, max as most, approx_unique as distinct_values, avg as mean,
    null_percentage as null_percent, count as row_count
from (summarize {relation})
