-- Objects with rows of the spans whose log records came without them.
-- needs: batch, interactions, joined_spans
-- makes: rows (uri)
select distinct interactions.source_uri as uri
from interactions
inner join joined_spans
    on coalesce(interactions.alias_id, interactions.request_id) = joined_spans.span_id
    and interactions.source = joined_spans.source
anti join batch on interactions.source_uri = batch.uri
where joined_spans.item is null
