-- Objects of the batch. fallback_ts: the time of records without one (the day in the object's key, else the object's own time).
-- makes: temp table batch (object, source, uri, workloads, fallback_ts)
create or replace temp table batch (
    object integer, source varchar, uri varchar, workloads map(varchar, varchar), fallback_ts timestamptz
)
