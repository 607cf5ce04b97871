-- The objects of one batch. fallback_ts: the time of records that have none (the day their key names, else the object's).
create or replace temp table batch (
    object integer, source varchar, uri varchar, workloads map(varchar, varchar), fallback_ts timestamptz
)
