-- One line, trimmed, with single spaces (of 64 or fewer). Six plain replacements take a fifth of the time of one regular
-- expression.
-- makes: macro one_spacing(line)
create or replace temp macro one_spacing(line) as
    trim(case
        when contains(line, '  ') then
            replace(replace(replace(replace(replace(replace(
                line, '  ', ' '), '  ', ' '), '  ', ' '), '  ', ' '), '  ', ' '), '  ', ' ')
        else line
    end)
