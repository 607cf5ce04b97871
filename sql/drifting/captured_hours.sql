-- Drafts and accepted tokens of a release by hour, of captured requests whose server reported them. $release null: of the release
-- that answered last.
-- needs: interactions
-- parameters: $release
-- makes: rows (hour, drafts, accepted_tokens)
with chosen as (
    select coalesce($release, arg_max(release, ts)) as release from interactions where drafts > 0
)
select date_trunc('hour', ts) as hour, sum(drafts)::bigint as drafts, sum(accepted_tokens)::bigint as accepted_tokens
from interactions
join chosen on interactions.release is not distinct from chosen.release
where drafts > 0 and accepted_tokens between 0 and draft_tokens
group by hour
order by hour
