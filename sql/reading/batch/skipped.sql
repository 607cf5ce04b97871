-- Complete records that are not interactions (an HTTP span, a line that a later one repeats): read, and dropped.
-- makes: temp table skipped (object, row, workload, rule)
create or replace temp table skipped (object integer, row bigint, workload varchar, rule varchar)
