-- A text in lower case with all white space as spaces.
-- makes: macro one_line(text)
create or replace temp macro one_line(text) as
    replace(replace(replace(lower(text), chr(10), ' '), chr(9), ' '), chr(13), ' ')
