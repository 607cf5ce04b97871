-- A text without white space at its ends and with single spaces inside. A regular expression sees only the texts that need one.
create or replace temp macro one_spacing(text) as
    trim(case
        when contains(translate(text, chr(9) || chr(10) || chr(13), '   '), '  ')
            then regexp_replace(text, '\s+', ' ', 'g')
        else translate(text, chr(9) || chr(10) || chr(13), '   ')
    end)
