-- Spans and log records of OTLP documents, each with what it tells of a model call. place: its number in its line; further: the
-- number that the line's further choices count on from.
-- needs: model_call_of(), otlp_call(), otlp_items(), records
-- makes: temp table otlp_calls (object, row, place, further, service, item, call)
create or replace temp table otlp_calls as
with documents as (
    select object, row, otlp_items(raw) as items
    from records
),

items as (
    select
        object,
        row,
        unnest(case when len(items) > 0 then items else [null] end) as sent,
        unnest(range(greatest(coalesce(len(items), 0), 1))) as place
    from documents
)

-- Items without the attributes of a model call are not parsed
select
    object,
    row,
    cast(place as integer) as place,
    1000000 as further,
    sent.service as service,
    cast(sent.item as varchar) as item,
    otlp_call(
        case
            when sent.item is null then '{"kind": "passed over", "rule": "otlp_no_span_or_event"}'
            when regexp_matches(sent.item, '"(gen_ai\.|llm\.|openinference\.)')
                then model_call_of(cast(sent.item as varchar))
            else '{"kind": "passed over", "rule": "otlp_other"}'
        end
    ) as call
from items
