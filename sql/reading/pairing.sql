-- name: pair_matches
-- For each response, the requests of its folder with its custom_id; only those with its file name, if there are any.
create or replace temp table pair_matches as
with sides as (
    select pair_sides.*, places.source, places.folder, places.stem
    from pair_sides
    inner join places using (object)
    where pair_sides.form = $form
),
matches as (
    select
        responses.object, responses.row, requests.object as request_object, requests.row as request_row,
        responses.stem = requests.stem as same_stem
    from sides as responses
    inner join sides as requests
        on responses.source = requests.source
        and responses.folder = requests.folder
        and responses.custom_id = requests.custom_id
        and responses.side = 'response'
        and requests.side = 'request'
),
nearest as (
    select *
    from matches
    qualify same_stem = max(same_stem) over (partition by object, row)
)
select *, count(*) over (partition by object, row) as candidates
from nearest

-- name: matched_pairs
-- Each request with its response, at the response's place, numbered from 0.
create or replace temp view matched_pairs as
with numbered as (
    select *, row_number() over (order by object, row) - 1 as number
    from pair_matches
    where candidates = 1
)
select numbered.number, numbered.object, numbered.row, requests.raw as request, responses.raw as response
from numbered
inner join pair_sides as requests on requests.object = numbered.request_object and requests.row = numbered.request_row
inner join pair_sides as responses on responses.object = numbered.object and responses.row = numbered.row

-- name: quarantine_unpaired
-- Requests and responses without a partner, or with several candidates.
insert into quarantined by name
with paired as (
    select object, row from pair_matches where candidates = 1
    union
    select request_object, request_row from pair_matches where candidates = 1
),
claimed as (
    select object, row from pair_matches
    union
    select request_object, request_row from pair_matches
)
select
    pair_sides.object, pair_sides.row, case
        when pair_sides.side is null then 'missing_field'
        when claimed.object is not null then 'ambiguous_custom_id'
        else 'unpaired'
    end as error_code,
    case
        when pair_sides.side is null then 'the line has no id of its request (custom_id, key), or neither request nor response nor error'
        when claimed.object is not null and $form = 'vllm' then concat(
            'several requests of this folder have the id ', pair_sides.custom_id[:100], '; the same log seems to be there twice'
        )
        when claimed.object is not null then concat(
            'several requests of this folder have the ', if($form = 'gemini_batch', 'key ', 'custom_id '), pair_sides.custom_id[:100],
            '; give a batch''s files one name (b1_input.jsonl, b1_output.jsonl) or a folder'
        )
        when pair_sides.side = 'request' and $form = 'vllm' then concat(
            'no response to the request ', pair_sides.custom_id[:100], ' in this folder; run vLLM with --enable-log-outputs too'
        )
        when $form = 'vllm' then concat('no request of the id ', pair_sides.custom_id[:100], ' in this folder')
        when pair_sides.side = 'request' then concat('no response for the ', if($form = 'gemini_batch', 'key ', 'custom_id '), pair_sides.custom_id[:100], ' in this folder')
        else concat('no request for the ', if($form = 'gemini_batch', 'key ', 'custom_id '), pair_sides.custom_id[:100], ' in this folder')
    end as message,
    encode(pair_sides.raw)[:4096] as raw
from pair_sides
anti join paired using (object, row)
left join claimed using (object, row)
where pair_sides.form = $form

-- name: paired_requests
-- Number of requests that count as part of their response's record, by object.
select request_object, count(distinct request_row)
from pair_matches
where candidates = 1
group by request_object

-- name: partners
-- Pairs of objects that hold the two sides of a record, in both directions.
select object, request_object as other
from pair_matches
where candidates = 1 and object <> request_object
union
select request_object, object
from pair_matches
where candidates = 1 and object <> request_object

-- name: page
-- One page of the pairs, by their own number: a table's rowid does not begin at 0 until its transaction is committed. A pair of a
-- source with `fields` has its lines too: paths lead into them.
select
    object, row,
    case
        when list_contains($fielded, batch.source)
            then cast(json_merge_patch(raw, json_object('joined_lines', json_array(response::json, request::json))) as varchar)
        else raw
    end as raw
from pairs
inner join batch using (object)
where number >= $begin and number < $begin + $number
order by pairs.number
