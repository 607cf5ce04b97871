-- The error text of a record; null where the field means no error: null, "", false, 0, {}, or an object of these.
-- makes: macro error_text(said)
create or replace temp macro error_text(said) as
case json_type(said)
    when 'OBJECT' then case
        when len(list_filter(
            json_extract(said, '$.*'), lambda each: cast(each as varchar) not in ('null', '""', '{}', '[]', 'false', '0')
        )) > 0 then coalesce(nullif(said ->> '$.message', ''), cast(said as varchar))
    end
    when 'ARRAY' then case when json_array_length(said) > 0 then cast(said as varchar) end
    when 'VARCHAR' then case when lower(trim(said ->> '$')) not in ('', 'none', 'null', 'false') then said ->> '$' end
    else case when cast(said as varchar) not in ('null', 'false', '0') then cast(said as varchar) end
end
