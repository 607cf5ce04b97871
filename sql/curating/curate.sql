-- name: cleaned_rows
-- Cleaned rows without their texts: several steps need them, and a slice of many days takes long to read.
create or replace temp table cleaned_rows as
select
    interaction_id, workload, dt, ts, session_id, status, feedback, prompt_characters, completion_characters, content_sha256,
    normalised_sha256, signature, replaced is not null as is_corrected
from cleaned_interactions

-- name: logged_rows
-- What curation needs of the rows as logged: ids that feedback may name, the user, and how the answer ended.
create or replace temp table logged_rows as
select interaction_id, request_id, alias_id, trace_id, user_hash, ts, status, finish_reason
from interactions

-- name: logged_tokens
-- Rows that were logged as token ids.
create or replace temp table logged_tokens as
select interaction_id, prompt_token_ids, completion_token_ids, params
from interactions
where status = 'tokens'

-- name: candidates_with_ids
-- Rows that reach curation with the ids that feedback may name, as input of curating/clean/row_feedback. Feedback is read
-- again because it may arrive after its day was cleaned.
create or replace temp table conversations as
select
    cleaned_rows.workload, cleaned_rows.interaction_id, logged_rows.request_id, logged_rows.alias_id, logged_rows.trace_id,
    cleaned_rows.session_id
from cleaned_rows
left join logged_rows using (interaction_id)
where cleaned_rows.status = 'ok'

-- name: scores
-- The judge's scores of every row, by text: copies share the scores of the row that was judged.
create or replace temp table scores as
with text_scores as (
    select
        cleaned_rows.normalised_sha256,
        arg_max(score, judgements.ts) filter (name = 'quality') as quality,
        arg_max(score, judgements.ts) filter (name = 'difficulty') as difficulty
    from judgements
    join cleaned_rows using (interaction_id, content_sha256)
    where model = $model and prompt_sha256 = $prompt_sha256 and score is not null
    group by cleaned_rows.normalised_sha256
)
select interaction_id, text_scores.quality, text_scores.difficulty
from cleaned_rows
join text_scores using (normalised_sha256)

-- name: corrected_answers
-- Conversations as they were before a person corrected their answer, by the hash of exact copies.
create or replace temp table corrected_answers as
select distinct sha256(array_to_string(
    list_transform(conversation_with_identities(messages, replaced), lambda message: message.identity), ' '
)) as normalised_sha256
from cleaned_interactions
where replaced is not null

-- name: candidates
-- Rows that reach curation, ranked: of copies, the row with the lowest `place` is kept. Order: feedback, then length, recency,
-- id; so the order never depends on how rows arrived. was_corrected: a person corrected the answer in a copy of the row.
create or replace temp table candidates as
with with_feedback as (
    select
        rows.*,
        -- what people said of the answer as it was says nothing of its correction
        case when not is_corrected then coalesce(row_feedback.value, rows.feedback) end as feedback_value, scores.quality as judged_quality, scores.difficulty
    from cleaned_rows as rows
    left join row_feedback using (interaction_id)
    left join scores using (interaction_id)
    where rows.status = 'ok'
)
select
    row_number() over (
        order by
            coalesce(feedback_value, 0) desc, prompt_characters + completion_characters desc, ts desc nulls last, interaction_id
    ) as place,
    interaction_id, dt, session_id, ts, normalised_sha256, feedback_value, judged_quality, difficulty,
    $drop_thumbs_down and coalesce(feedback_value, 0) < 0 as thumbs_down,
    not is_corrected and normalised_sha256 in (select normalised_sha256 from corrected_answers) as was_corrected,
    coalesce(judged_quality < $min_quality, false) as low_quality
from with_feedback

-- name: unique_rows
-- Rows left after feedback, quality and decontamination. `representative` is the best of a row's exact copies.
create or replace temp table unique_rows as
with clean_rows as (
    select place, interaction_id, normalised_sha256
    from candidates
    where not thumbs_down and not was_corrected and not low_quality and interaction_id not in (select interaction_id from contaminated)
)
select
    place, interaction_id,
    case
        when $exact_duplicates then min(place) over (partition by normalised_sha256)
        else place
    end as representative
from clean_rows

-- name: decisions
-- One decision per row that reached curation, by the first rule that applies. kept_id is the row that was kept instead.
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
        when compared.was_corrected then 'corrected_answer'
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
        when 'low_quality' then printf('quality %g of 10', compared.judged_quality)
        when 'contaminated' then printf('%s, %.0f %% of its words', compared.item, 100 * compared.share)
        when 'near_duplicate' then printf('similarity %.2f', compared.similarity)
        when 'semantic_duplicate' then printf('cosine %.3f', compared.semantic_similarity)
    end as detail,
    case
        when rule in ('exact_duplicate', 'near_duplicate', 'semantic_duplicate') then bests.interaction_id
    end as kept_id,
    compared.feedback_value, compared.judged_quality, compared.difficulty
from compared
left join candidates as bests on bests.place = compared.best

-- name: curated
-- Rows that are kept. user_hash is the user of the session: the first one that its requests name. text and token_ids are set for
-- rows that are not conversations; their messages are []. was_cut: the answer ended at the token limit (kept only where
-- curation.status.drop_truncated is off).
with users as (
    select cleaned_rows.session_id, arg_min(logged_rows.user_hash, (logged_rows.ts, logged_rows.interaction_id)) as user_hash
    from cleaned_rows
    join logged_rows using (interaction_id)
    where logged_rows.user_hash is not null
    group by cleaned_rows.session_id
)
select
    decided.interaction_id, known.workload, known.dt, known.ts, texts.source, known.session_id, users.user_hash,
    texts.messages, texts.tools, texts.completion, texts.reasoning, texts.request, decided.feedback_value as feedback,
    texts.prompt_shape, known.prompt_characters, known.completion_characters, known.content_sha256, known.normalised_sha256,
    decided.judged_quality as quality, decided.difficulty,
    case when logged_rows.status = 'text' then texts.completion ->> '$.content' end as text,
    case when logged_rows.status = 'tokens' then list_concat(logged_tokens.prompt_token_ids, logged_tokens.completion_token_ids)
        end as token_ids,
    case when logged_rows.status = 'tokens' then
        labels_of(logged_tokens.prompt_token_ids, logged_tokens.completion_token_ids, logged_tokens.params) end as labels,
    coalesce(logged_rows.finish_reason in ('length', 'max_tokens'), false) and not known.is_corrected as was_cut,
    texts.language, known.signature
from decided
join cleaned_rows as known using (interaction_id)
join cleaned_interactions as texts using (interaction_id)
left join users on users.session_id = known.session_id
left join logged_rows using (interaction_id)
left join logged_tokens using (interaction_id)
where decided.kept
order by known.session_id, known.ts, decided.interaction_id

-- name: decision_rows
-- Curation's decisions as rows of the table `decisions`.
select
    $workload as workload, 'curate' as stage, $version as version, dt, interaction_id, rule, coalesce(kept, false) as kept,
    detail, kept_id
from decided
order by interaction_id

-- name: counts
-- Number of rows by rule.
select rule, count(*) as rows from decided group by rule order by rule

-- name: count_candidates
-- Number of rows that reach curation.
select count(*) from candidates

-- name: other_signatures
-- Number of rows whose MinHash signature was computed with other settings and cannot be compared.
select count(*) from cleaned_rows where len(signature) > 0 and signature[1] <> $stamp

-- name: signatures
-- MinHash signatures of the rows left after exact duplicates, best first.
select unique_rows.place, signature
from cleaned_rows
join unique_rows using (interaction_id)
where unique_rows.place = unique_rows.representative and len(signature) > 0
order by unique_rows.place

-- name: texts_to_compare
-- Texts of the suspect rows, the same as for their signatures: the new turn, and the answer if there is one.
create or replace temp view texts_to_compare as
with conversations_read as (
    select
        place,
        conversation_texts(messages, completion) as conversation,
        coalesce(try(json_type(completion)) = 'OBJECT', false) as answered
    from cleaned_interactions
    join (select place, interaction_id from unique_rows semi join suspects using (place)) as chosen using (interaction_id)
)
select
    place,
    array_to_string(list_transform(
        new_messages(if(answered, conversation[1:-2], conversation)), lambda message: message.text
    ), ' ') as new_turn,
    if(answered, conversation[-1].text, null) as answer
from conversations_read

-- name: suspect_texts
-- The suspects' texts, best row first.
select new_turn, answer
from texts_to_compare
order by place

-- name: remaining_rows
-- Rows left after exact and near duplicates, best first.
select unique_rows.place
from unique_rows
left join near_duplicates on near_duplicates.place = unique_rows.place
where unique_rows.place = unique_rows.representative and coalesce(near_duplicates.best, unique_rows.place) = unique_rows.place
order by unique_rows.place

-- name: remaining_texts
-- The texts that are embedded, best row first: the new turn and the answer.
select new_turn || chr(10) || coalesce(answer, '') as text
from texts_to_compare
order by place
