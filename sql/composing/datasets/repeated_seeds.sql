-- Seeds that repeat traffic: the whole seed is the beginning of a logged conversation, or its text or token ids are those of a
-- row; or they were made from an interaction that is in this dataset itself.
-- needs: curated, prefixes, seeds
-- makes: temp table repeated_seeds (row_id, rule, held_id)
create or replace temp table repeated_seeds as
with last_answers as (
    select interaction_id as row_id, arg_max(prefix_hash, position) as prefix_hash
    from prefixes
    where interaction_id in (select row_id from seeds)
    group by interaction_id
),
found as (
    select last_answers.row_id, prefixes.interaction_id as held_id
    from last_answers
    join prefixes using (prefix_hash)
    where prefixes.interaction_id in (select interaction_id from curated)
    union all
    select seeds.row_id, curated.interaction_id from seeds join curated on curated.text = seeds.text
    union all
    select seeds.row_id, curated.interaction_id
    from seeds
    join curated on curated.token_ids = seeds.token_ids and curated.labels = seeds.labels
    union all
    select origins.row_id, curated.interaction_id
    from (select row_id, unnest(interaction_ids) as interaction_id from seeds) as origins
    join curated using (interaction_id)
)
select row_id, 'duplicate_of_traffic' as rule, min(held_id) as held_id
from found
group by row_id
