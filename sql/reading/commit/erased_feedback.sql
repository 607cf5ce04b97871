-- Staged feedback about erased interactions: in the record of one, or naming an erased id, also one of this batch.
-- needs: erased_hashes, newly_erased_ids, row_decisions, staged_feedback
-- parameters: $user_hash_key
-- makes: temp table erased_feedback (object, row, part)
create or replace temp table erased_feedback as
with named as (
    select object, row, part, workload, unnest([interaction_id, request_id, trace_id, session_id]) as id
    from staged_feedback
    semi join (select distinct workload from erased_hashes) as affected using (workload)
),
hashed as (
    select object, row, part, workload, sha256(concat($user_hash_key, chr(31), id)) as keyed from named where id is not null
)
select object, row, part from hashed
semi join erased_hashes on erased_hashes.workload = hashed.workload and sha256 = keyed
union
select object, row, part from named
semi join newly_erased_ids using (id)
union
select object, row, part from staged_feedback
semi join (select object, row from row_decisions where rule = 'erased') as gone using (object, row)
where extra
