-- Lines that identify a slice of cleaned rows: id, content, and a hash of the cleaned row.
-- needs: cleaned_interactions
-- makes: rows (dt, line)
select
    dt,
    interaction_id || ' ' || coalesce(content_sha256, '') || ' ' || md5(to_json(
        {messages: messages, tools: tools, completion: completion, status: status, session: session_id, shape: prompt_shape,
        text: normalised_sha256, signature: signature}
    )::varchar) as line
from cleaned_interactions
order by dt, line
