-- Feedback as a format reads it. extra: it came along with an interaction's record and is no record of its own.
create or replace temp table extracted_feedback (
    object integer, row bigint, part integer, extra boolean,
    request_id varchar, trace_id varchar, session_id varchar, interaction_id varchar, workload_name varchar,
    name varchar, written_value varchar, label varchar, source varchar, comment varchar, written_ts varchar
)
