-- Feedback of one batch, ready for the table.
-- makes: temp table staged_feedback (object, row, part, extra, copied, workload, dt, interaction_id, request_id, trace_id,
--     session_id, name, value, label, source, comment, ts, source_uri, source_row)
create or replace temp table staged_feedback (
    object integer, row bigint, part integer, extra boolean, copied boolean, workload varchar, dt date, interaction_id varchar,
    request_id varchar, trace_id varchar, session_id varchar, name varchar, value double, label varchar,
    source varchar, comment varchar, ts timestamptz, source_uri varchar, source_row bigint
)
