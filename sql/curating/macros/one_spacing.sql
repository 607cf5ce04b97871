-- One line, trimmed, with single spaces. Most runs of spaces are short: two plain replacements end those of up to four, at a
-- fraction of the time of the regular expression that ends longer ones. trim reads a text character by character, so only texts
-- that need it are trimmed.
-- makes: macro one_spacing(line)
create or replace temp macro one_spacing(line) as
    case
        when regexp_matches(line, '^\p{Zs}') or regexp_matches(line, '\p{Zs}$') then trim(
            regexp_replace(replace(replace(line, '  ', ' '), '  ', ' '), '  +', ' ', 'g')
        )
        when contains(line, '     ') then regexp_replace(replace(replace(line, '  ', ' '), '  ', ' '), '  +', ' ', 'g')
        when contains(line, '  ') then replace(replace(line, '  ', ' '), '  ', ' ')
        else line
    end
