-- A text in lower case, its white space as spaces.
create or replace temp macro one_line(text) as
    replace(replace(replace(lower(text), chr(10), ' '), chr(9), ' '), chr(13), ' ')
