create view dataset_rows as
select
    ''::varchar as node, ''::varchar as split, ''::varchar as row_id, ''::varchar as origin, ''::varchar as session_id,
    ''::varchar as interaction_id
where false
