-- Labels of a pre-tokenized row: -100 for the prompt and for the spans in params.masked.
-- makes: macro labels_of(prompt_ids, completion_ids, params)
create or replace temp macro labels_of(prompt_ids, completion_ids, params) as
    list_concat(
        list_transform(prompt_ids, lambda id: -100),
        list_transform(
            completion_ids,
            lambda id, nth: case
                when len(list_filter(
                    coalesce(try_cast(json_extract(params, '$.masked') as integer[][]), []),
                    lambda span: nth > span[1] and nth <= span[2]
                )) > 0 then -100
                else id
            end
        )
    )
