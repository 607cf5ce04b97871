-- Hashes of what the selected interactions say and were answered, as logged and as cleaned: seeds may repeat it.
-- needs: cleaned_interactions, conversation_texts(), exchanges_of(), interactions, selected
-- parameters: $user_hash_key
-- makes: temp table erased_exchanges (sha256)
create or replace temp table erased_exchanges as
with told as (
    select messages, completion from interactions semi join selected using (workload, interaction_id)
    union all
    select messages, completion from cleaned_interactions semi join selected using (workload, interaction_id)
),
said as (
    select unnest(exchanges_of(conversation_texts(messages, completion))) as exchange
    from told
)
select distinct sha256(concat($user_hash_key, chr(31), exchange)) as sha256
from said
