-- `dataset_rows` for a lake without datasets: the columns, no rows.
-- makes: view dataset_rows (node, split, row_id, origin, session_id, interaction_id)
create view dataset_rows as
select
    ''::varchar as node, ''::varchar as split, ''::varchar as row_id, ''::varchar as origin, ''::varchar as session_id,
    ''::varchar as interaction_id
where false
