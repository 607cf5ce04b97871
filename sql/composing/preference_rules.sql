-- name: answer_message
-- An answer as a message of the assistant (JSON) with its reasoning.
create or replace temp macro answer_message(message, reasoning) as
    json_merge_patch(message, json_object('role', 'assistant', 'reasoning_content', nullif(trim(reasoning), '')))

-- name: bare_message
-- A message of a training row (JSON) without what only fine-tuning reads.
create or replace temp macro bare_message(message) as
    json_merge_patch(message, '{"weight": null, "learnt_reasoning": null, "learnt_cut": null, "learnt_request": null}')

-- name: content_of
-- The text of a message (JSON), without its calls. (An arrow in the argument of a function that takes a lambda would be one.)
create or replace temp macro content_of(said) as
    message_text(struct_pack(content := json_extract(said, '$.content'), tool_calls := null::json, function_call := null::json))

-- name: beside_content
-- What a message (JSON) has besides its text: calls, and parts of another kind.
create or replace temp macro beside_content(said) as
    message_text(struct_pack(
        content := null::json, tool_calls := json_extract(said, '$.tool_calls'), function_call := json_extract(said, '$.function_call')
    )) || array_to_string(list_filter(
        coalesce(try_cast(json_extract(said, '$.content') as json[]), []), lambda part: json_extract_string(part, '$.type') <> 'text'
    ), ' ')

-- name: one_space
-- A text with single spaces.
create or replace temp macro one_space(text) as trim(regexp_replace(text, '\s+', ' ', 'g'))

-- name: sentences_of
-- The sentences and lines of a text, with single spaces.
create or replace temp macro sentences_of(text) as
    list_filter(
        list_transform(
            regexp_split_to_array(text, '[.!?]+(\s+|$)|[。！？\n]+'),
            lambda sentence: trim(regexp_replace(sentence, '\s+', ' ', 'g'))
        ),
        lambda sentence: sentence <> ''
    )

-- name: left_marks
-- The pattern of the marks that a client leaves for what it took out of an answer: an ellipsis, alone or in brackets; '[truncated]'
-- and the like; [REDACTED], <EMAIL> and {{NAME}}, but not the numbered <EMAIL_1> of cleaning; a row of signs such as ***.
create or replace temp macro left_marks() as concat(
    '[\[(<{]+[^\[\]()<>{}]{0,80}(?:\.{3}|…)[^\[\]()<>{}]{0,80}[\])>}]+|(?:\.{3,}|…)(?:\s?[\[(<{]+[^\[\]()<>{}]{1,80}[\])>}]+)?',
    '|[\[<{]+[^\[\]()<>{}]{0,80}\b(?i:truncated|omitted|removed|redacted|masked|hidden|shortened|trimmed|elided|snip)\b[^\[\]()<>{}]{0,80}[\]>}]+',
    '|[\[{]+[A-Z][A-Z0-9 _-]{2,}[\]}]+|<[A-Z][A-Z _-]{2,}>|\*{2,}|X{2,}|#{2,}|•{2,}|[█■▇]+'
)

-- name: with_marks
-- A text with single spaces in which each mark is chr(2).
create or replace temp macro with_marks(text) as regexp_replace(one_space(text), left_marks(), chr(2), 'g')

-- name: without_digits
-- A text in which each number, and each row of the signs that clients write over digits, is one X.
create or replace temp macro without_digits(text) as regexp_replace(one_space(text), '[0-9X#*•_]([.,]?[0-9X#*•_])*', 'X', 'g')

-- name: is_cut
-- Whether a text is the beginning of an answer and a mark, but not the end of words in bold.
create or replace temp macro is_cut(text, answer) as
    regexp_matches(with_marks(text), '[^\x02]\x02$') and not regexp_matches(text, '[*#]\s*$')
    and starts_with(with_marks(answer), regexp_replace(with_marks(text), '\s*\x02$', ''))

-- name: after_piece
-- What follows the first occurrence of a piece in a text after its first letter, digit or mark; null where there is none.
create or replace temp macro after_piece(text, piece) as
    substr(text, nullif(instr(
        substr(text, nullif(length(regexp_extract(text, '^[^\pL\pN\x02]*[\pL\pN\x02]')), 0) + 1), piece
    ), 0) + length(piece) + length(regexp_extract(text, '^[^\pL\pN\x02]*[\pL\pN\x02]')))

-- name: is_masked
-- Whether a text is an answer without its digits, or pieces of the answer, in order, with a mark that is more frequent than in the
-- answer. Each mark stands for a letter or digit at least, so that an answer with words in bold is no masked one.
create or replace temp macro is_masked(text, answer) as
    regexp_matches(answer, '\d') and not regexp_matches(text, '\d') and without_digits(text) = without_digits(answer)
    or len(list_filter(
        list_distinct(regexp_extract_all(text, left_marks())),
        lambda mark: len(string_split(text, mark)) > len(string_split(answer, mark))
    )) > 0 and list_reduce(
        string_split(chr(3) || with_marks(text) || chr(1), chr(2)),
        lambda rest, piece: after_piece(rest, piece),
        'x' || chr(3) || with_marks(answer) || chr(1)
    ) is not null

-- name: pairs
-- Candidates with their texts, those of a teacher too: a kept and a rejected answer (reason $taught), and a kept answer beside the
-- logged one (strong). rule: why a pair is left out, by the first rule that applies. placeholders: edited texts that stand for the
-- answers to three last messages or more (is_repeated: as a client repeats them, and nobody sent them as an edit), since two may well have the same right answer, and to more than the log answers with the
-- text: a label is no placeholder.
create or replace temp table pairs as
with placeholders as (
    select chosen_said
    from candidates
    join cleaned_interactions on interaction_id = rejected_id
    where reason = 'edited'
    group by chosen_said
    having count(distinct lower(one_space(messages ->> '$[#-1].content'))) >= greatest(
        3, 1 + (select count(distinct prompt) from answered where answered.answer = candidates.chosen_said)
    )
),
logged as (
    select
        'pair:' || left(md5(candidates.rendered || chosen_said || rejected_said), 24) as row_id, 'interaction' as origin, reason,
        candidates.rendered, rejected_said, chosen_said, chosen_id, rejected_id, margin, votes,
        list_distinct(list_filter(
            list_concat(
                [struct_pack(interaction_id := chosen_id, place := chosen_answer.place),
                 struct_pack(interaction_id := rejected_id, place := rejected_answer.place)],
                list_transform(votes, lambda vote: struct_pack(interaction_id := vote.interaction_id, place := vote.place))
            ),
            lambda each: each.interaction_id is not null
        )) as behind,
        worse.source, worse.session_id, worse.ts, worse.language, worse.messages as prompt, worse.tools, worse.request,
        case
            when edit is null then answer_message(cast(coalesce(better.replaced, better.completion) as json), better.reasoning)
            else answer_message(edit, worse.reasoning)
        end as chosen,
        answer_message(cast(coalesce(worse.replaced, worse.completion) as json), worse.reasoning) as rejected,
        reason = 'edited' and rejected_answer.corrected is distinct from chosen_said as is_repeated,
        chosen_value.value as chosen_feedback, rejected_value.value as rejected_feedback,
        chosen_rendered <> candidates.rendered as prompts_differ, coalesce(chosen_answer.is_low_quality, false) as is_low_quality,
        exists (
            from opinions
            where opinions.rendered = candidates.rendered and opinions.chosen_said = candidates.rejected_said
                and opinions.rejected_said = candidates.chosen_said and candidates.chosen_said <> candidates.rejected_said
        ) as is_contradicted
    from candidates
    join cleaned_interactions as worse on worse.interaction_id = rejected_id
    left join cleaned_interactions as better on better.interaction_id = chosen_id
    join answered as rejected_answer on rejected_answer.interaction_id = rejected_id
    left join answered as chosen_answer on chosen_answer.interaction_id = chosen_id
    left join row_feedback as chosen_value on chosen_value.interaction_id = chosen_id
    left join row_feedback as rejected_value on rejected_value.interaction_id = rejected_id
),
taught as (
    select
        row_id, $taught as reason, (chosen_score - rejected_score) / $score_range as margin, interaction_ids, source, session_id,
        cast(prompt as json[]) as messages, tools, request, chosen::json -> 0 as chosen, rejected::json -> 0 as rejected,
        chosen_score, rejected_score
    from teacher_pairs
    union all
    select
        row_id, 'strong', null, logged_rows.interaction_ids, logged_rows.source, logged_rows.session_id, cast(logged_rows.messages as json[])[:-2],
        logged_rows.tools, logged_rows.request, cast(taught_rows.messages as json) -> '$[#-1]', cast(logged_rows.messages as json) -> '$[#-1]',
        null, null
    from logged_rows
    join taught_rows using (row_id)
    where logged_rows.origin = 'interaction' and logged_rows.messages <> '[]' and taught_rows.messages <> logged_rows.messages
),
together as (
    select * from logged
    union all by name
    select
        'pair:' || left(md5(chosen::varchar || rejected::varchar || row_id), 24) as row_id, 'teacher' as origin, reason, margin,
        interaction_ids, source, session_id, cast(to_json(list_transform(messages, lambda each: bare_message(each))) as varchar) as prompt,
        tools, request, answer_message(bare_message(chosen), chosen ->> '$.reasoning_content') as chosen,
        answer_message(bare_message(rejected), rejected ->> '$.reasoning_content') as rejected, chosen_score as chosen_feedback,
        rejected_score as rejected_feedback, false as prompts_differ, false as is_low_quality, false as is_contradicted
    from taught
    where reason in (select reason from confidences where confidence > 0)
),
measured as (
    select
        *, content_of(chosen) as chosen_text, content_of(rejected) as rejected_text, beside_content(chosen) as chosen_beside,
        beside_content(rejected) as rejected_beside, chosen_beside = rejected_beside as is_alike_beside,
        one_space(if(length(chosen_text) < length(rejected_text), chosen_text, rejected_text)) as shorter,
        one_space(if(length(chosen_text) < length(rejected_text), rejected_text, chosen_text)) as longer,
        sentences_of(chosen_text) as chosen_sentences, sentences_of(rejected_text) as rejected_sentences
    from together
)
select
    measured.* replace (chosen::varchar as chosen, rejected::varchar as rejected), confidence, turn,
    case
        when is_alike_beside and chosen_text = rejected_text then 'equal_answers'
        when prompts_differ then 'prompts_differ'
        when is_contradicted then 'sources_disagree'
        when is_alike_beside and shorter = longer then 'only_white_space'
        when is_alike_beside and (
            starts_with(longer, shorter) and not regexp_matches(longer[length(shorter) + 1:], '^([\p{L}\p{N}]|[.,:/-]\p{N})')
            or list_has_all(chosen_sentences, rejected_sentences) or list_has_all(rejected_sentences, chosen_sentences)
            -- a client that repeats a part of an answer did not edit it
            or is_repeated and contains(longer, shorter)
        ) then 'only_length'
        when is_repeated and chosen_said in (select chosen_said from placeholders) then 'placeholder'
        when is_repeated and is_cut(chosen_text, rejected_text) then 'only_cut'
        when is_repeated and is_masked(chosen_text, rejected_text) then 'only_masked'
        when refused_in_words(chosen_text) and chosen_beside = '' then 'chosen_refuses'
        when refused_in_words(rejected_text) and rejected_beside = '' then 'rejected_refuses'
        when is_low_quality then 'chosen_low_quality'
    end as rule
from measured
join confidences using (reason)

-- name: searched_rows
-- Answers that no log has as such (edited ones and those of a teacher), as the rows that resources/curating/decontamination.py
-- searches. Their prompts were searched with the traffic.
create or replace temp view searched_rows as
select row_id || side as row_id, '[]' as messages, answer as completion
from (
    select row_id, ' chosen' as side, chosen as answer from pairs where rule is null and (reason = 'edited' or origin = 'teacher')
    union all
    select row_id, ' rejected', rejected from pairs where rule is null and origin = 'teacher'
)

-- name: decided_pairs
-- Pairs with the rule that leaves them out, if any. Two texts are one pair, and but for ranked answers a rejected one is in one: that
-- of the surest source. A voter counts for one pair of a prompt, the last. weight: the votes that count, each with its propensity.
create or replace temp table decided_pairs as
with clean_pairs as (
    select * replace (coalesce(rule, if(
        row_id in (select regexp_extract(interaction_id, '^\S+') from contaminated), 'contaminated', null
    )) as rule)
    from pairs
),
chosen_pairs as (
    select * replace (coalesce(rule, if(
        row_number() over (partition by rule is null, row_id order by confidence desc, turn) > 1 or row_number() over (
            partition by rule is null, if(reason = 'ranked', row_id, coalesce(rendered || rejected_said, row_id))
            order by confidence desc, turn, chosen_id, row_id
        ) > 1, 'paired_by_surer_source', null
    )) as rule)
    from clean_pairs
),
cast_votes as (
    select row_id, reason, rendered, unnest(votes) as vote from chosen_pairs where rule is null
),
last_votes as (
    select row_id, reason, vote.propensity as propensity
    from cast_votes
    qualify row_number() over (partition by vote.voter, rendered order by vote.ts desc, vote.interaction_id desc, row_id) = 1
),
weights as (
    select row_id, reason, sum(propensity) as weight from last_votes group by row_id, reason
)
select
    chosen_pairs.* replace (coalesce(rule, if(len(votes) > 0 and weights.weight is null, 'earlier_vote', null)) as rule),
    coalesce(weights.weight, 1)::double as weight
from chosen_pairs
left join weights using (row_id, reason)

-- name: decided_verdicts
-- Verdicts on single answers with the rule that leaves them out, if any: of each voter the last one on a prompt counts; equal texts
-- are one row with the mean verdict. weight: the votes, a session's outcome shared by its answers.
create or replace temp table decided_verdicts as
with last_votes as (
    select *, row_number() over (partition by kind, voter, rendered order by ts desc, interaction_id desc) > 1 as is_earlier
    from votes
    where kind <> 'ranked'
),
texts as (
    select
        if(kind = 'rated', 'thumb', kind) as reason, rendered, said, bool_and(is_earlier) as is_earlier,
        avg(value) filter (where not is_earlier) as value, sum(propensity * share) filter (where not is_earlier) as weight,
        arg_max(interaction_id, (not is_earlier, ts, interaction_id)) as interaction_id,
        list(struct_pack(interaction_id, place) order by interaction_id) as behind
    from last_votes
    group by kind, rendered, said
)
select
    texts.*, confidence, value > 0 as desirable,
    case
        when is_earlier then 'earlier_vote'
        when value = 0 then 'neutral'
        when value > 0 and is_low_quality then 'chosen_low_quality'
    end as rule
from texts
join answered using (interaction_id)
join confidences using (reason)
where confidence > 0
