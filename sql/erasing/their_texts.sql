-- What the selected interactions say, as JSON (as cleaned where retention emptied them), and the comments of people on them.
-- needs: asked_objects, cleaned_interactions, feedback, interactions, selected
-- makes: rows (text)
select unnest([messages, completion, to_json(reasoning)]) as text
from interactions
semi join selected using (workload, interaction_id)
union all
select unnest([messages, completion, to_json(reasoning)])
from cleaned_interactions
semi join selected using (workload, interaction_id)
semi join (select workload, interaction_id from interactions where emptied is not null) as emptied
    using (workload, interaction_id)
union all
select to_json(comment)
from feedback
where comment is not null
    and (
        interaction_id in (select interaction_id from selected)
        or (workload, source_uri) in (select (workload, uri) from asked_objects)
    )
