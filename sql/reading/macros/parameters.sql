-- A request's sampling parameters, without user names, secrets, headers and what other columns hold (tools, messages).
-- makes: macro parameters(params)
create or replace temp macro parameters(params) as
case
    when regexp_matches(
        lower(cast(params as varchar)),
        'user|safety|cache_key|metadata|headers|extra_|api_|secret|passw|credential|auth|token"|access_key|litellm|proxy|'
        '"tools"|"functions"|"messages"|"input"|"prompt"|"instructions"|"system|"prediction"|"contents"'
    ) then json_merge_patch(cast(params as varchar), to_json(map_from_entries(list_transform(
        list_filter(json_keys(params), lambda name: regexp_full_match(
            lower(name),
            '(.*[_-])?(user|user_?(id|name|email)|username)|safety_identifier|prompt_cache_key|.*metadata|.*headers?|'
            'extra_(body|query|params)|.*(api[_-]?(key|base)|secret|passw(or)?d|credentials?|authorization|access[_-]?key).*|'
            '(.*[_-])?(auth|access|ad|session|bearer|refresh|security|hf|api|id)[_-]?token|token|auth|'
            '(litellm|optional)_(params|call_id)|proxy_server_request|'
            'tools|functions|messages|input|prompt|instructions|system|system_?instructions?|prediction|contents'
        )),
        lambda name: struct_pack(k := name, v := cast(null as varchar))
    ))))
    else params
end
