-- The cleaned rows: one per interaction, with its status (the rule that drops it, or ok) and its measures.
-- needs: broken_rules, cleaned, measured, row_feedback, row_topics, shape_of(), texts
-- parameters: $cleaned_with
-- makes: rows (workload, dt, interaction_id, content_sha256, session_id, ts, source, messages, tools, completion, reasoning,
--     request, status, feedback, prompt_characters, completion_characters, pii, language, quality, prompt_shape, normalised_sha256,
--     signature, cleaned_with)
select
    cleaned.workload, cleaned.dt, cleaned.interaction_id, cleaned.content_sha256, cleaned.session_id, cleaned.ts, cleaned.source,
    cleaned.messages, cleaned.tools, cleaned.completion, cleaned.reasoning, cleaned.request,
    coalesce(broken_rules.rule, 'ok') as status,
    row_feedback.value as feedback,
    coalesce(prompt_characters, 0) as prompt_characters,
    coalesce(completion_characters, 0) as completion_characters,
    pii,
    measured.language,
    map_from_entries(list_filter(
        [
            {k: 'answer_words', v: measured.answer_words::double},
            {k: 'answer_to_prompt', v: if(prompt_characters > 0, completion_characters / prompt_characters, null)},
            {k: 'earlier_turns', v: cleaned.earlier_turns::double},
            {k: 'calls_without_tools', v: if(coalesce(try(json_array_length(cleaned.tools)), 0) = 0, nullif(
                coalesce(try(json_array_length(cleaned.completion, '$.tool_calls')), 0)
                + if(try(json_type(cleaned.completion, '$.function_call')) = 'OBJECT', 1, 0), 0
            )::double, null)},
            {k: 'repeats', v: if(measured.repeats > 1, measured.repeats::double, null)},
            {k: 'code_share', v: nullif(measured.code_share, 0)},
            {k: 'language_confidence', v: nullif(measured.language_confidence, 0)},
            {k: 'duplicate_lines', v: measured.duplicate_lines},
            {k: 'duplicate_paragraphs', v: measured.duplicate_paragraphs},
            {k: 'duplicate_line_characters', v: measured.duplicate_line_characters},
            {k: 'duplicate_paragraph_characters', v: measured.duplicate_paragraph_characters},
            {k: 'top_2gram', v: measured.top_2gram},
            {k: 'top_3gram', v: measured.top_3gram},
            {k: 'top_4gram', v: measured.top_4gram},
            {k: 'duplicate_5grams', v: measured.duplicate_5grams},
            {k: 'duplicate_6grams', v: measured.duplicate_6grams},
            {k: 'duplicate_7grams', v: measured.duplicate_7grams},
            {k: 'duplicate_8grams', v: measured.duplicate_8grams},
            {k: 'duplicate_9grams', v: measured.duplicate_9grams},
            {k: 'duplicate_10grams', v: measured.duplicate_10grams}
        ],
        lambda each: each.v is not null
    )) as quality,
    shape_of(new_role, topic, messages, tools, client, instructions) as prompt_shape,
    -- token ids have no text: two such rows are exact duplicates if all ids and labels agree, and never near duplicates
    if(cleaned.status = 'tokens', content_sha256, normalised_sha256) as normalised_sha256,
    if(broken_rules.rule is null and cleaned.status is distinct from 'tokens', coalesce(measured.signature, []), []) as signature,
    $cleaned_with as cleaned_with
from cleaned
left join texts using (interaction_id)
left join row_topics using (interaction_id)
left join measured using (interaction_id)
left join broken_rules using (interaction_id)
left join row_feedback using (interaction_id)
order by session_id, ts, cleaned.interaction_id
