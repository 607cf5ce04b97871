-- Records that are whole but no interactions (a span of an HTTP call, a line that a later one repeats): read, and dropped.
create or replace temp table skipped (object integer, row bigint, workload varchar, rule varchar)
