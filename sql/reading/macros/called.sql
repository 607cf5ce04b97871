-- Messages, or one message, whose tool calls all have their arguments as the text of a JSON object. Only those are parsed that
-- have a call whose arguments are an object, an empty text, null, or missing.
-- needs: arguments_as_text()
-- makes: macro called(said)
create or replace temp macro called(said) as
case
    when contains(said, '"function') and (
        regexp_matches(said, '"arguments"\s*:\s*[^"\s]')
        or len(regexp_extract_all(said, '"function(_call)?"\s*:\s*\{'))
            > len(regexp_extract_all(said, '"arguments"\s*:\s*"\s*[^"\s]'))
    ) then arguments_as_text(said)
    else said
end
