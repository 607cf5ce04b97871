-- The error text of a record; null where the field means no error: null, "", false, 0, {}, or an object of these.
-- makes: macro error_text(error_json)
create or replace temp macro error_text(error_json) as
case json_type(error_json)
    when 'OBJECT' then case
        when len(list_filter(
            json_extract(error_json, '$.*'), lambda each: cast(each as varchar) not in ('null', '""', '{}', '[]', 'false', '0')
        )) > 0 then coalesce(nullif(error_json ->> '$.message', ''), cast(error_json as varchar))
    end
    when 'ARRAY' then case when json_array_length(error_json) > 0 then cast(error_json as varchar) end
    when 'VARCHAR' then case when lower(trim(error_json ->> '$')) not in ('', 'none', 'null', 'false') then error_json ->> '$' end
    else case when cast(error_json as varchar) not in ('null', 'false', '0') then cast(error_json as varchar) end
end
