-- One decision for each row that reached curation, by the first rule that holds; kept_id is the row that stayed for it.
create or replace temp table decided as
with worst_item as (
    select interaction_id, arg_max(suite || ':' || item_id, (share, suite, item_id)) as item, max(share) as share
    from contaminated
    group by interaction_id
),
judged as (
    select
        entrants.*, worst_item.item, worst_item.share, standing.stands_for, mine.likeness,
        coalesce(groups.best, standing.stands_for) as nearest,
        coalesce(alike.best, nearest) as best, alike.likeness as meaning
    from entrants
    left join worst_item using (interaction_id)
    left join standing using (interaction_id)
    left join near as groups on groups.place = standing.stands_for
    left join alike on alike.place = coalesce(groups.best, standing.stands_for)
    left join near as mine on mine.place = entrants.place
)
select
    judged.interaction_id, judged.dt, judged.session_id, judged.ts, judged.best,
    case
        when judged.thumbs_down then 'thumbs_down'
        when judged.low_quality then 'low_quality'
        when judged.item is not null then 'contaminated'
        when judged.place <> judged.stands_for then 'exact_duplicate'
        when judged.place <> judged.nearest then 'near_duplicate'
        when judged.place <> judged.best then 'semantic_duplicate'
        else 'kept'
    end as rule,
    judged.place = judged.best as kept,
    case rule
        when 'thumbs_down' then printf('feedback %g', judged.opinion)
            || if(preferred.chosen_id is null, '', ', rejected half of a preference row')
        when 'low_quality' then printf('quality %g of 10', judged.judged_quality)
        when 'contaminated' then printf('%s, %.0f %% of its words', judged.item, 100 * judged.share)
        when 'near_duplicate' then printf('similarity %.2f', judged.likeness)
        when 'semantic_duplicate' then printf('cosine %.3f', judged.meaning)
    end as detail,
    case
        when rule in ('exact_duplicate', 'near_duplicate', 'semantic_duplicate') then bests.interaction_id
        when rule = 'thumbs_down' then preferred.chosen_id
    end as kept_id,
    judged.opinion, judged.judged_quality, judged.difficulty
from judged
left join entrants as bests on bests.place = judged.best
left join preferred on preferred.rejected_id = judged.interaction_id
