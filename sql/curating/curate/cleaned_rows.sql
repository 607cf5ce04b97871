-- Cleaned rows without their texts: several steps need them, and a slice of many days takes long to read.
-- needs: cleaned_interactions
-- makes: temp table cleaned_rows (interaction_id, workload, dt, ts, session_id, status, feedback, prompt_characters,
--     completion_characters, content_sha256, normalised_sha256, signature)
create or replace temp table cleaned_rows as
select
    interaction_id, workload, dt, ts, session_id, status, feedback, prompt_characters, completion_characters, content_sha256,
    normalised_sha256, signature
from cleaned_interactions
