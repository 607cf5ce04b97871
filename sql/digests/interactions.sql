-- A slice's identity: its rows' ids and contents, sorted. How often it was rewritten does not count.
select interaction_id || ' ' || coalesce(content_sha256, '') as line from interactions order by line
