-- Pairs whose shingles' true Jaccard similarity reaches the threshold.
create or replace temp table edges as
with compared as (
    select
        better, worse,
        len(a.shingles) as ours, len(b.shingles) as theirs,
        len(list_intersect(a.shingles, b.shingles)) as shared
    from pairs
    join shingled as a on a.place = better
    join shingled as b on b.place = worse
)
select better as a, worse as b, shared / (ours + theirs - shared) as similarity
from compared
where shared >= $similarity * (ours + theirs - shared)
