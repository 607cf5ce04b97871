-- One line without spaces at its ends and with single ones inside (of 64 or fewer). Six plain replacements are a fifth of the work
-- of one regular expression.
create or replace temp macro one_spacing(line) as
    trim(case
        when contains(line, '  ') then
            replace(replace(replace(replace(replace(replace(
                line, '  ', ' '), '  ', ' '), '  ', ' '), '  ', ' '), '  ', ' '), '  ', ' ')
        else line
    end)
