-- A text as resources/shingles.py reads words: lower case, one Unicode form; outside ASCII, punctuation becomes a space and
-- each character of a script without spaces a word of its own.
create or replace temp macro words_of(text) as
    case
        when strlen(text) = length(text) then lower(text)
        else regexp_replace(
            regexp_replace(lower(nfc_normalize(text)), '[^\pL\pN\pM_]+', ' ', 'g'),
            '([\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Khmer}\p{Lao}\p{Myanmar}])', ' \1 ', 'g'
        )
    end
