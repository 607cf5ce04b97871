-- One line, trimmed, with single spaces. Most runs of spaces are short: two plain replacements end them, at a fraction of the time
-- of the regular expression that ends longer ones.
-- makes: macro one_spacing(line)
create or replace temp macro one_spacing(line) as
    trim(case
        when contains(line, '  ') then
            regexp_replace(replace(replace(line, '  ', ' '), '  ', ' '), '  +', ' ', 'g')
        else line
    end)
