-- Each conversation's side: by the hash of its split group, so that a session lies on one side whole, and stays there
-- when new days arrive. With three groups or more, neither held-out side that has a share stays empty.
create or replace temp table placed as
with drawn as (
    select
        split_group,
        ('0x' || md5($seed || ':' || split_group)[1:8])::ubigint / 4294967296.0 as draw
    from (select distinct split_group from chains)
),
tested as (
    select
        *,
        count(*) over () as split_groups,
        draw < $test_share
        or ($test_share > 0 and count(*) over () >= 3 and row_number() over (order by draw, split_group) = 1) as is_test
    from drawn
),
sides as (
    select
        split_group,
        case
            when is_test then 'test'
            when draw < $test_share + $validation_share and draw >= $test_share then 'validation'
            when $validation_share > 0 and split_groups >= 3
                and row_number() over (partition by is_test order by draw, split_group) = 1 then 'validation'
            else 'train'
        end as split
    from tested
)
select
    chains.interaction_id as row_id, 'interaction' as origin, chains.source, chains.session_id, chains.workload, chains.ts,
    chains.chat as messages, chains.tools, chains.text, chains.token_ids, chains.labels, chains.prompt_shape,
    chains.content_sha256, chains.interaction_ids, sides.split, chains.quality, chains.difficulty
from chains
join sides using (split_group)
union all
select
    row_id, 'seed', source, row_id, (select any_value(workload) from curated), null,
    messages, tools, text, token_ids, labels, 'seed#' || source, content_sha256, [], 'train', null, null
from seeds
