-- Users (or sessions) that a stratum lends to a split in which it has none: of a stratum so large that the split's share is at
-- least one of them, the nearest draw. Only those are lent that no earlier version trained on, so no session changes its split.
-- $strata: columns, each value of which is a stratum
-- needs: split_groups, trained_before, training_conversations
-- parameters: $strata, $test_share, $validation_share
-- makes: temp table stratum_loans (drawn, split)
create or replace temp table stratum_loans as
with members as (
    select distinct
        split_groups.drawn, split_groups.split,
        unnest(list_filter([
            struct_pack(by := 'prompt_shape', label := training_conversations.prompt_shape),
            struct_pack(by := 'language', label := training_conversations.language),
            struct_pack(by := 'source', label := training_conversations.source)
        ], lambda each: each.label is not null and list_contains($strata::varchar[], each.by))) as stratum
    from training_conversations
    join split_groups using (session_id)
),
lendable as (
    select drawn
    from split_groups
    left join trained_before using (session_id)
    group by drawn
    having bool_and(split = 'train') and count(trained_before.session_id) = 0
),
strata as (
    select
        stratum,
        count(*) * $test_share >= 1 and not bool_or(split = 'test') as lacks_test,
        count(*) * $validation_share >= 1 and not bool_or(split = 'validation') as lacks_validation
    from members
    group by stratum
),
lent as (
    select min(drawn) filter (where lacks_test) as to_test, max(drawn) filter (where lacks_validation) as to_validation
    from strata
    join members using (stratum)
    semi join lendable using (drawn)
    group by stratum
)
select drawn, min(split) as split
from (
    select to_test as drawn, 'test' as split from lent
    union all
    select to_validation, 'validation' from lent
) as both_splits
where drawn is not null
group by drawn
