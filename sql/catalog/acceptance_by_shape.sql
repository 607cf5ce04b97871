-- Served acceptance by day, release and prompt shape: of requests whose server reported their drafts (vLLM with
-- --enable-per-request-metrics), by the shape that cleaning gave them.
-- needs: cleaned_interactions, interactions
-- makes: view acceptance_by_shape (workload, dt, release, prompt_shape, requests, drafts, draft_tokens, accepted_tokens, tau)
create view acceptance_by_shape as
select
    interactions.workload, interactions.dt, interactions.release, cleaned_interactions.prompt_shape,
    count(*) as requests,
    sum(interactions.drafts)::bigint as drafts,
    sum(interactions.draft_tokens)::bigint as draft_tokens,
    sum(interactions.accepted_tokens)::bigint as accepted_tokens,
    1 + sum(interactions.accepted_tokens) / sum(interactions.drafts) as tau
from interactions
left join cleaned_interactions using (workload, dt, interaction_id)
where interactions.drafts > 0
group by interactions.workload, interactions.dt, interactions.release, cleaned_interactions.prompt_shape
