-- Items found in the traffic and rows that contain one, by suite.
-- needs: contaminated, eval_items
-- makes: rows (suite, items, items_found, rows_holding_items)
select
    suites.suite,
    suites.items,
    count(distinct contaminated.item_id)::bigint as items_found,
    count(distinct contaminated.interaction_id)::bigint as rows_holding_items
from (select suite, count(*)::bigint as items from eval_items group by suite) as suites
left join contaminated using (suite)
group by suites.suite, suites.items
order by suites.suite
