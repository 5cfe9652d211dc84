"""Asks a gateway everything of the suite with the openai client, and prints what it saw: suite.py URL TAG.

What is printed is one JSON object, a member for each scenario; the clients of all languages must print the same. TAG
tells the clients apart at the engine. The key is taken from OPENAI_API_KEY.
"""

import json
import sys

import openai

URL, TAG = sys.argv[1], sys.argv[2]
MODEL = "scripted"
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]
SCHEMA = {
    "type": "json_schema",
    "json_schema": {
        "name": "weather",
        "strict": True,
        "schema": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "degrees": {"type": "integer"}},
            "required": ["city", "degrees"],
            "additionalProperties": False,
        },
    },
}

once = openai.OpenAI(base_url=URL + "/v1", max_retries=0)
patient = openai.OpenAI(base_url=URL + "/v1", max_retries=4)


def say(word):
    return {"model": MODEL, "messages": [{"role": "user", "content": f"{TAG} {word}"}]}


def counts(usage):
    return [usage.prompt_tokens, usage.completion_tokens, usage.prompt_tokens_details.cached_tokens]


def chat():
    choice = once.chat.completions.create(**say("chat")).choices[0]
    return {"text": choice.message.content, "finish": choice.finish_reason}


def completion():
    return once.completions.create(model=MODEL, prompt=f"{TAG} completion").choices[0].text


def stream():
    text, usage, chunks = "", None, 0
    with once.chat.completions.create(**say("stream"), stream=True, stream_options={"include_usage": True}) as events:
        for event in events:
            chunks += 1
            if event.choices:
                text += event.choices[0].delta.content or ""
            usage = event.usage or usage
    return {"text": text, "usage": counts(usage), "several": chunks > 2}


def tools():
    call = once.chat.completions.create(**say("tools"), tools=TOOLS, tool_choice="required").choices[0].message.tool_calls[0]
    return {"name": call.function.name, "arguments": json.loads(call.function.arguments)}


def tools_stream():
    name, arguments = "", ""
    with once.chat.completions.create(**say("tools"), tools=TOOLS, tool_choice="required", stream=True) as events:
        for event in events:
            for call in event.choices[0].delta.tool_calls or []:
                name += call.function.name or ""
                arguments += call.function.arguments or ""
    return {"name": name, "arguments": json.loads(arguments)}


def structured():
    return json.loads(once.chat.completions.create(**say("structured"), response_format=SCHEMA).choices[0].message.content)


def usage():
    return counts(once.chat.completions.create(**say("chat")).usage)


def models():
    return [m.id for m in once.models.list()]


def refused(ask):
    try:
        ask()
    except openai.APIStatusError as e:
        return {"status": e.status_code, "type": e.type, "reason": e.response.headers.get("x-pdrouter-reason", "")}
    return "answered"


def timeout():
    try:
        once.with_options(timeout=1).chat.completions.create(**say("hang"))
    except openai.APITimeoutError:
        return "timeout"
    return "answered"


def cancel():
    events = once.chat.completions.create(**say("endless"), stream=True)
    first = next(iter(events)).choices[0].delta.content
    events.close()
    return first


def cut():
    text = ""
    try:
        with once.chat.completions.create(**say("cut"), stream=True) as events:
            for event in events:
                text += event.choices[0].delta.content or ""
    except openai.APIError:
        return {"text": text, "error": True}
    return {"text": text, "error": False}


stranger = openai.OpenAI(base_url=URL + "/v1", api_key="nobody", max_retries=0)
print(
    json.dumps(
        {
            "chat": chat(),
            "completion": completion(),
            "stream": stream(),
            "tools": tools(),
            "tools_stream": tools_stream(),
            "structured": structured(),
            "usage": usage(),
            "models": models(),
            "bad_request": refused(lambda: once.chat.completions.create(**say("reject"))),
            "not_found": refused(lambda: once.chat.completions.create(**{**say("chat"), "model": "nothing"})),
            "unauthorized": refused(lambda: stranger.chat.completions.create(**say("chat"))),
            "busy": refused(lambda: once.chat.completions.create(**say("busy"))),
            "retried": patient.chat.completions.create(**say("soon")).choices[0].message.content,
            "timeout": timeout(),
            "cancel": cancel(),
            "cut": cut(),
        }
    )
)
