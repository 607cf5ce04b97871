-- Share of each prompt shape in each split. A shape of fewer than five rows is not named: it may show a person's own words.
-- needs: card_rows
-- makes: rows (shape, rows, train, validation, test)
with counted as (
    select coalesce(prompt_shape, '') as shape, split, count(*) as rows
    from card_rows
    group by all
),
shares as (
    select *, rows / sum(rows) over (partition by split) as share, sum(rows) over (partition by shape) as all_rows
    from counted
)
select
    shape, any_value(all_rows)::bigint as rows,
    coalesce(max(share) filter (where split = 'train'), 0) as train,
    coalesce(max(share) filter (where split = 'validation'), 0) as validation,
    coalesce(max(share) filter (where split = 'test'), 0) as test
from shares
where all_rows >= 5
group by shape
order by rows desc, shape
limit 12
