-- The columns that a format's feedback.sql may fill. about_part: the interaction it is about, as a part of the
-- same record.
create or replace temp table no_feedback (
    object integer, row bigint, part integer, extra boolean, about_part integer,
    request_id varchar, trace_id varchar, session_id varchar, interaction_id varchar, workload_name varchar,
    name varchar, written_value varchar, label varchar, source varchar, comment varchar, written_ts varchar
)
