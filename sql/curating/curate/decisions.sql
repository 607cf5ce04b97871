-- One decision per row that reached curation, by the first rule that applies. kept_id is the row that was kept instead.
-- needs: candidates, contaminated, near_duplicates, preferred, semantic_duplicates, unique_rows
-- makes: temp table decided (interaction_id, dt, session_id, ts, best, rule, kept, detail, kept_id, feedback_value,
--     judged_quality, difficulty)
create or replace temp table decided as
with worst_item as (
    select interaction_id, arg_max(suite || ':' || item_id, (share, suite, item_id)) as item, max(share) as share
    from contaminated
    group by interaction_id
),
compared as (
    select
        candidates.*, worst_item.item, worst_item.share, unique_rows.representative, own_group.similarity,
        coalesce(groups.best, unique_rows.representative) as near_best,
        coalesce(semantic_duplicates.best, near_best) as best, semantic_duplicates.similarity as semantic_similarity
    from candidates
    left join worst_item using (interaction_id)
    left join unique_rows using (interaction_id)
    left join near_duplicates as groups on groups.place = unique_rows.representative
    left join semantic_duplicates on semantic_duplicates.place = coalesce(groups.best, unique_rows.representative)
    left join near_duplicates as own_group on own_group.place = candidates.place
)
select
    compared.interaction_id, compared.dt, compared.session_id, compared.ts, compared.best,
    case
        when compared.thumbs_down then 'thumbs_down'
        when compared.low_quality then 'low_quality'
        when compared.item is not null then 'contaminated'
        when compared.place <> compared.representative then 'exact_duplicate'
        when compared.place <> compared.near_best then 'near_duplicate'
        when compared.place <> compared.best then 'semantic_duplicate'
        else 'kept'
    end as rule,
    compared.place = compared.best as kept,
    case rule
        when 'thumbs_down' then printf('feedback %g', compared.feedback_value)
            || if(preferred.chosen_id is null, '', ', rejected answer of a preference row')
        when 'low_quality' then printf('quality %g of 10', compared.judged_quality)
        when 'contaminated' then printf('%s, %.0f %% of its words', compared.item, 100 * compared.share)
        when 'near_duplicate' then printf('similarity %.2f', compared.similarity)
        when 'semantic_duplicate' then printf('cosine %.3f', compared.semantic_similarity)
    end as detail,
    case
        when rule in ('exact_duplicate', 'near_duplicate', 'semantic_duplicate') then bests.interaction_id
        when rule = 'thumbs_down' then preferred.chosen_id
    end as kept_id,
    compared.feedback_value, compared.judged_quality, compared.difficulty
from compared
left join candidates as bests on bests.place = compared.best
left join preferred on preferred.rejected_id = compared.interaction_id
