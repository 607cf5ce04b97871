-- Messages of a prompt that a chat template rendered and that waits for an answer: ChatML (Qwen and others), Llama 3 and
-- Mistral, if every marker is in place; else null. Markers of tools stay part of their message's text.
-- makes: macro templated_messages(prompt)
create or replace temp macro templated_messages(prompt) as
case
    when contains(prompt, '<|im_start|>') then
        case when regexp_full_match(
            prompt,
            '(<\|endoftext\|>)?\s*(<\|im_start\|>(system|developer|user|assistant|tool)\n(?s:.*?)<\|im_end\|>\s*)+'
            '<\|im_start\|>assistant\n(<think>\s*(</think>\s*)?)?'
        ) and len(string_split(prompt, '<|im_start|>')) = len(string_split(prompt, '<|im_end|>')) + 1
        then list_transform(
            string_split(prompt, '<|im_start|>')[2:-2],
            lambda turn: struct_pack(
                "role" := split_part(turn, chr(10), 1),
                "content" := split_part(substr(turn, length(split_part(turn, chr(10), 1)) + 2), '<|im_end|>', 1)
            )
        ) end
    when contains(prompt, '<|start_header_id|>') then
        case when regexp_full_match(
            prompt,
            '(<\|begin_of_text\|>)?(<\|start_header_id\|>(system|user|assistant|ipython|tool)<\|end_header_id\|>\n\n'
            '(?s:.*?)<\|eot_id\|>\s*)+<\|start_header_id\|>assistant<\|end_header_id\|>\s*'
        ) and len(string_split(prompt, '<|start_header_id|>')) = len(string_split(prompt, '<|eot_id|>')) + 1
        then list_transform(
            string_split(prompt, '<|start_header_id|>')[2:-2],
            lambda turn: struct_pack(
                "role" := replace(split_part(turn, '<|end_header_id|>', 1), 'ipython', 'tool'),
                "content" := split_part(
                    substr(turn, length(split_part(turn, '<|end_header_id|>', 1)) + 20), '<|eot_id|>', 1
                )
            )
        ) end
    when contains(prompt, '[INST]') then
        case when regexp_full_match(
            prompt,
            '(<s>)?\s*(\[SYSTEM_PROMPT\](?s:.*?)\[/SYSTEM_PROMPT\])?(\[INST\](?s:.*?)\[/INST\](?s:.*?)</s>\s*)*'
            '\[INST\](?s:.*?)\[/INST\]\s*'
        ) and len(string_split(prompt, '[INST]')) = len(string_split(prompt, '[/INST]'))
            and len(string_split(prompt, '</s>')) = len(string_split(prompt, '[INST]')) - 1
            and not regexp_matches(prompt, '<<SYS>>|\[AVAILABLE_TOOLS\]|\[TOOL_CALLS\]|\[TOOL_RESULTS\]|\[IMG\]')
        then list_concat(
            case when contains(prompt, '[SYSTEM_PROMPT]') then [struct_pack(
                "role" := 'system',
                "content" := split_part(split_part(prompt, '[SYSTEM_PROMPT]', 2), '[/SYSTEM_PROMPT]', 1)
            )] else [] end,
            list_filter(
                flatten(list_transform(
                    string_split(prompt, '[INST]')[2:],
                    lambda turn: [
                        struct_pack("role" := 'user', "content" := trim(split_part(turn, '[/INST]', 1))),
                        struct_pack(
                            "role" := 'assistant',
                            "content" := trim(split_part(split_part(turn, '[/INST]', 2), '</s>', 1))
                        )
                    ]
                )),
                lambda message: message.role = 'user' or message.content <> ''
            )
        ) end
end
