-- The columns that a format's feedback.sql may fill. about_part: the part of the same record that the feedback is about.
-- makes: temp table no_feedback (object, row, part, extra, about_part, request_id, trace_id, session_id, interaction_id,
--     workload_name, name, written_value, label, source, comment, written_ts)
create or replace temp table no_feedback (
    object integer, row bigint, part integer, extra boolean, about_part integer,
    request_id varchar, trace_id varchar, session_id varchar, interaction_id varchar, workload_name varchar,
    name varchar, written_value varchar, label varchar, source varchar, comment varchar, written_ts varchar
)
