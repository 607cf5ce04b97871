-- Names of prompt shapes that only erased rows have: a name holds a word of a prompt. Of cleaned rows, and of those
-- in files of datasets.
-- needs: cleaned_interactions, derived, in_files
-- makes: rows (shape)
with theirs as (
    select prompt_shape as shape from cleaned_interactions semi join derived using (workload, interaction_id)
    union
    select prompt_shape from in_files where is_erased
),
staying as (
    select prompt_shape as shape from cleaned_interactions anti join derived using (workload, interaction_id)
    union
    select prompt_shape from in_files where not is_erased
)
select shape
from theirs
anti join staying using (shape)
where not starts_with(shape, '#')
order by shape
