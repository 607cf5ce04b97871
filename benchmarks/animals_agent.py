"""For benchmarks.verifiers_env: an agent as the pages of OpenAI's library show one, with a tool, streamed or not."""

import json

from openai import OpenAI

LOOK = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Looks into a box.",
        "parameters": {"type": "object", "properties": {"box": {"type": "integer"}}, "required": ["box"]},
    },
}


def run(row, base_url, api_key):
    record, client = row["record"], OpenAI(base_url=base_url, api_key=api_key)
    messages, looked, turns = list(row["prompt"]), False, 0
    while turns < 3:
        message = ask(client, messages, record["streams"])
        messages.append(message)
        turns += 1
        if not message.tool_calls:
            break
        for call in message.tool_calls:
            try:
                right = json.loads(call.function.arguments).get("box") == record["box"]
            except (ValueError, AttributeError):
                right = False
            looked |= right
            told = f"a {record['animal']}" if right else "nothing"
            messages.append({"role": "tool", "tool_call_id": call.id, "content": told})
    right = (messages[-1].content or "").strip() == record["animal"] if not isinstance(messages[-1], dict) else False
    return {"score": 0.5 * looked + 0.5 * right, "looked": looked, "right": right, "turns": turns}


def ask(client, messages, streams):
    asked = {"model": "policy", "messages": messages, "tools": [LOOK], "max_completion_tokens": 24}
    if not streams:
        return client.chat.completions.create(**asked).choices[0].message
    with client.chat.completions.stream(**asked, stream_options={"include_usage": True}) as stream:
        return stream.get_final_completion().choices[0].message
