-- Three rows that each rule of curation would drop, by their places in the logs, and the rows that would be kept instead. Details of
-- single rows are left out: they may name what a model wrote (a tool).
-- needs: decisions, interactions
-- makes: rows (rule, place, detail, kept_place)
select
    decisions.rule, printf('%s:%d', dropped.source_uri, dropped.source_row) as place, if(stage = 'curate', coalesce(decisions.detail, ''), '') as detail,
    coalesce(printf('%s:%d', stays.source_uri, stays.source_row), '') as kept_place
from decisions
join interactions as dropped using (interaction_id)
left join interactions as stays on stays.interaction_id = decisions.kept_id
where decisions.stage in ('clean', 'curate') and not decisions.kept
qualify row_number() over (partition by decisions.rule order by dropped.source_uri, dropped.source_row, interaction_id) <= 3
order by count(*) over (partition by decisions.rule) desc, decisions.rule, dropped.source_uri, dropped.source_row
