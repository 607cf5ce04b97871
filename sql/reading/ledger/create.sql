-- The workload's ledger, to be worked on.
create or replace temp table ledger as
select
    source, uri, etag, bytes, modified, rows, coalesce(days, []) as days, state, coalesce(format, '') as format,
    coalesce(problem, '') as problem, coalesce(read_as, '') as read_as, coalesce(partners, []) as partners,
    coalesce(content_sha256, '') as content_sha256
from objects
