-- Messages, or one message, whose tool calls all have their arguments as the text of a JSON object, and whose answers have no control
-- text. Only those are parsed that have a call whose arguments are an object, an empty text, null, or missing, a call of a custom
-- tool, or a sign of control text.
-- needs: normal_messages()
-- makes: macro called(said)
create or replace temp macro called(said) as
case
    when regexp_matches(said, '<[|｜]|[|｜]>|</?s>|<(eos|bos|eoa|pad)>|_of_turn>|\[/?INST\]|<(unused|SPECIAL_|/think|thought)|think▷|\[THINK|\[\||seed:|\[e~\[|\\u003[cC]|"custom"')
        or contains(said, '"function') and (
            regexp_matches(said, '"arguments"\s*:\s*([^"\s]|"\s*null\s*")')
            or len(regexp_extract_all(said, '"function(_call)?"\s*:\s*\{'))
                > len(regexp_extract_all(said, '"arguments"\s*:\s*"\s*[^"\s]'))
        )
        then normal_messages(said)
    else said
end
