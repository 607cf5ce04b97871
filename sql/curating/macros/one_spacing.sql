-- One line, trimmed, with single spaces (of 64 or fewer). Plain replacements take half the time of one regular expression; two
-- suffice for runs of up to four spaces. trim reads a text character by character, so only texts that need it are trimmed.
-- makes: macro one_spacing(line)
create or replace temp macro one_spacing(line) as
    case
        when regexp_matches(line, '^\p{Zs}') or regexp_matches(line, '\p{Zs}$') then trim(
            replace(replace(replace(replace(replace(replace(
                line, '  ', ' '), '  ', ' '), '  ', ' '), '  ', ' '), '  ', ' '), '  ', ' ')
        )
        when contains(line, '  ') then case
            when contains(line, '     ') then
                replace(replace(replace(replace(replace(replace(
                    line, '  ', ' '), '  ', ' '), '  ', ' '), '  ', ' '), '  ', ' '), '  ', ' ')
            else replace(replace(line, '  ', ' '), '  ', ' ')
        end
        else line
    end
