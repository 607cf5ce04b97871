-- The workload's ledger as a table to work on.
-- needs: objects
-- makes: temp table ledger (source, uri, etag, bytes, modified, rows, days, state, format, problem, read_as, partners,
--     content_sha256, unread_keys)
create or replace temp table ledger as
select
    source, uri, etag, bytes, modified, rows, coalesce(days, []) as days, state, coalesce(format, '') as format,
    coalesce(problem, '') as problem, coalesce(read_as, '') as read_as, coalesce(partners, []) as partners,
    coalesce(content_sha256, '') as content_sha256, coalesce(unread_keys, '') as unread_keys
from objects
