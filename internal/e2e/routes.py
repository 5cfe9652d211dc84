"""The scenarios that the openai client has no part in: bodies as they are written, answers as they come.

A Raw is one request. Its answer is compared whole: everything but names that are drawn anew for each request, times, and how
many tokens were cached; of a stream the text, the tokens, the events' order and the last of them.
"""

import dataclasses
import json
import math
import random
import time

import httpx2

MODEL = "tiny"
BLOCK = 32  # tokens of one KV block
DRAWN = {"id", "item_id", "request_id", "response_id", "previous_response_id", "created", "created_at", "completed_at", "system_fingerprint", "call_id", "metrics"}
SPARE = {"kv_transfer_params", "ec_transfer_params"}  # absent or null is one
CHAT, COMPLETIONS, RESPONSES, MESSAGES, TOKENS = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/inference/v1/generate",
)
FORGED = {
    "do_remote_prefill": True,
    "do_remote_decode": False,
    "transfer_id": "f" * 32,
    "remote_engine_id": "nobody",
    "remote_request_id": "nothing",
    "remote_block_ids": [[1, 2]],
    "remote_host": "192.0.2.1",
    "remote_port": 9,
    "tp_size": 1,
}


def prose(seed, length):
    """Text of exactly length bytes, which is as many tokens."""
    dice = random.Random(seed)
    words = []
    while sum(len(w) + 1 for w in words) <= length:
        words.append("".join(dice.choices("abcdefghijklmnopqrstuvwxyz", k=dice.randint(2, 9))))
    return " ".join(words)[:length]


def tokens(seed, length):
    dice = random.Random(seed)
    return [dice.randrange(10, 200) for _ in range(length)]


@dataclasses.dataclass
class Raw:
    name: str
    path: str
    more: dict
    stream: bool = False
    reason: str = "split"  # or how it ends: either engine may be the one that refuses
    hand_offs: int = 1
    prompts: int = 1  # how often the prompt's tokens are decoded from: once for each choice
    status: int = 200
    forged: dict = dataclasses.field(default_factory=dict)  # only ever sent to the gateway
    cached: bool = False  # the count of cached tokens is part of the answer

    def body(self, gateway):
        asked = {"model": MODEL, "temperature": 0, **self.more, **(self.forged if gateway else {})}
        if self.path == TOKENS:
            del asked["temperature"]
        if self.stream:
            asked["stream"] = True
        return asked


def generates(path, seed, length, limit=20):
    """What asks a route for limit tokens behind a prompt of length tokens, or a few more where a template stands around it."""
    inner = max(1, length - len("<user>\n<assistant>"))
    if path == RESPONSES:
        return {"input": prose(seed, inner), "max_output_tokens": limit}
    if path == MESSAGES:
        return {"messages": [{"role": "user", "content": prose(seed, inner)}], "max_tokens": limit}
    if path == TOKENS:
        return {"token_ids": tokens(seed, length), "sampling_params": {"temperature": 0, "max_tokens": limit}}
    if path == CHAT:
        return {"messages": [{"role": "user", "content": prose(seed, inner)}], "max_tokens": limit, "return_token_ids": True}
    return {"prompt": prose(seed, length), "max_tokens": limit, "return_token_ids": True}


def split():
    """The routes beside chat and completions below, at and above block edges, and forged hand-offs."""
    for path in (RESPONSES, MESSAGES, TOKENS):
        for length in (BLOCK - 1, BLOCK, BLOCK + 1, 700):
            for stream in (False, True):
                yield Raw(f"{path} {length}{' streamed' if stream else ''}", path, generates(path, f"{path} {length} {stream}", length), stream=stream)
    for path in (RESPONSES, MESSAGES, TOKENS):
        yield Raw(f"{path} forged", path, generates(path, f"{path} forged", 90), forged={"kv_transfer_params": FORGED})
        yield Raw(f"{path} forged streamed", path, generates(path, f"{path} forged too", 90), stream=True, forged={"kv_transfer_params": FORGED, "ec_transfer_params": FORGED})
    yield Raw(f"{MESSAGES} forged in vllm_xargs", MESSAGES, generates(MESSAGES, "forged xargs", 90), forged={"vllm_xargs": {"kv_transfer_params": FORGED}})
    inside = generates(TOKENS, "forged inside", 90)
    wrong = {"sampling_params": {**inside["sampling_params"], "extra_args": {"kv_transfer_params": FORGED}}}
    yield Raw("forged in extra_args", TOKENS, inside, forged=wrong)
    yield Raw("a foreign request_id", RESPONSES, generates(RESPONSES, "foreign id", 90), forged={"request_id": "resp_mine"})
    yield Raw("usage in each event", COMPLETIONS, {**generates(COMPLETIONS, "usage", 90), "stream_options": {"include_usage": True, "continuous_usage_stats": True}}, stream=True)
    yield Raw("usage of tokens", TOKENS, {**generates(TOKENS, "usage of tokens", 90), "stream_options": {"include_usage": True}}, stream=True)


def cached():
    """A prompt that was asked before: how much of it prefill had is what one engine would have had."""
    for path in (CHAT, COMPLETIONS, RESPONSES, MESSAGES):
        for again in ("", " again"):
            yield Raw(f"{path} cached{again}", path, generates(path, f"{path} cached", 130), cached=True)
        yield Raw(f"{path} cached streamed", path, {**generates(path, f"{path} cached", 130), **usage_of(path)}, stream=True, cached=True)


def usage_of(path):
    return {"stream_options": {"include_usage": True}} if path in (CHAT, COMPLETIONS) else {}


def fan():
    """Several choices: one hand-off for each."""
    three = [prose(f"prompt {i}", 40 + 60 * i) for i in range(3)]
    for stream in (False, True):
        how = " streamed" if stream else ""
        usage = {"stream_options": {"include_usage": True}} if stream else {}
        yield Raw(f"three prompts{how}", COMPLETIONS, {"prompt": three, "max_tokens": 16, "return_token_ids": True, **usage}, stream=stream, hand_offs=3)
        yield Raw(f"two of tokens{how}", COMPLETIONS, {"prompt": [tokens(f"one{how}", 50), tokens(f"two{how}", 33)], "max_tokens": 8, **usage}, stream=stream, hand_offs=2)
        seeded = {"n": 3, "seed": 7, "temperature": 0.8, **usage}
        yield Raw(f"three choices{how}", COMPLETIONS, {**generates(COMPLETIONS, f"choices{how}", 100), **seeded}, stream=stream, hand_offs=3, prompts=3)
        yield Raw(f"three chat choices{how}", CHAT, {**generates(CHAT, f"chat choices{how}", 100), **seeded}, stream=stream, hand_offs=3, prompts=3)
    both = {"prompt": three[:2], "max_tokens": 8, "n": 2, "seed": 2**63 - 9, "temperature": 0.8}
    yield Raw("two choices of two prompts", COMPLETIONS, both, hand_offs=4, prompts=2)


def alone():
    """What decode serves by itself, each with the reason that it is told by."""
    for path in (CHAT, COMPLETIONS, RESPONSES, MESSAGES, TOKENS):
        for stream in (False, True):
            more = generates(path, f"{path} one token {stream}", 90, limit=1)
            yield Raw(f"{path} one token{' streamed' if stream else ''}", path, more, stream=stream, reason="max_tokens<=1", hand_offs=0)


def engine():
    """What only engines with a sampler, a grammar and a store of their own serve."""
    schema = {
        "type": "object",
        "properties": {"city": {"enum": ["Bern", "Rome"]}, "degrees": {"type": "integer", "minimum": 0, "maximum": 9}},
        "required": ["city", "degrees"],
        "additionalProperties": False,
    }
    named = {"type": "json_schema", "json_schema": {"name": "weather", "schema": schema, "strict": True}}
    function = {"name": "weather", "description": "the weather of a city", "parameters": schema}
    for stream in (False, True):
        how = " streamed" if stream else ""
        wide = {"logprobs": True, "top_logprobs": 3}
        yield Raw(f"a schema{how}", CHAT, {**generates(CHAT, f"schema{how}", 70, 60), "response_format": named}, stream=stream)
        yield Raw(f"a pattern{how}", COMPLETIONS, {**generates(COMPLETIONS, f"pattern{how}", 70), "structured_outputs": {"regex": "[0-9]{3}-[a-f]{4}"}}, stream=stream)
        yield Raw(
            f"a schema of responses{how}", RESPONSES, {**generates(RESPONSES, f"schema r{how}", 70, 60), "text": {"format": {"name": "weather", "type": "json_schema", "schema": schema, "strict": True}}}, stream=stream
        )
        yield Raw(f"a tool{how}", CHAT, {**generates(CHAT, f"tool{how}", 70, 60), "tools": [{"type": "function", "function": function}], "tool_choice": "required"}, stream=stream)
        yield Raw(f"a named tool{how}", CHAT, {**generates(CHAT, f"named{how}", 70, 60), "tools": [{"type": "function", "function": function}], "tool_choice": {"type": "function", "function": {"name": "weather"}}}, stream=stream)
        yield Raw(f"a tool of responses{how}", RESPONSES, {**generates(RESPONSES, f"tool r{how}", 70, 60), "tools": [{"type": "function", **function}], "tool_choice": "required"}, stream=stream)
        yield Raw(
            f"a tool of messages{how}", MESSAGES, {**generates(MESSAGES, f"tool m{how}", 70, 60), "tools": [{"name": "weather", "input_schema": schema}], "tool_choice": {"type": "any"}}, stream=stream
        )
        yield Raw(f"logprobs of chat{how}", CHAT, {**generates(CHAT, f"logprobs{how}", 70), **wide}, stream=stream)
        yield Raw(f"logprobs{how}", COMPLETIONS, {**generates(COMPLETIONS, f"logprobs c{how}", 70), "logprobs": 2}, stream=stream)
        yield Raw(f"stops at a letter{how}", COMPLETIONS, {**generates(COMPLETIONS, f"stop{how}", 70, 200), "stop": ["e", "a", "t"], "include_stop_str_in_output": True}, stream=stream)
        yield Raw(f"stop_sequences{how}", MESSAGES, {**generates(MESSAGES, f"stop m{how}", 70, 200), "stop_sequences": ["e", "a", "t"]}, stream=stream)
        yield Raw(f"seeded{how}", CHAT, {**generates(CHAT, f"seeded{how}", 70), "temperature": 0.9, "top_p": 0.9, "seed": 2**53 + 1}, stream=stream)
        yield Raw(f"penalties{how}", COMPLETIONS, {**generates(COMPLETIONS, f"penalties{how}", 70, 40), "presence_penalty": 1.5, "frequency_penalty": 0.5, "repetition_penalty": 1.3}, stream=stream)
        yield Raw(f"a least count{how}", CHAT, {**generates(CHAT, f"least{how}", 70), "min_tokens": 20, "max_completion_tokens": 24}, stream=stream)
        yield Raw(f"text of tokens{how}", TOKENS, {**generates(TOKENS, f"text{how}", 70), "output_mode": "text"}, stream=stream)
        yield Raw(f"several turns{how}", MESSAGES, {**generates(MESSAGES, f"turn{how}", 70), "system": [{"type": "text", "text": prose(f"system{how}", 50)}]}, stream=stream)
    for name, path, more, reason in (
        ("an echo", COMPLETIONS, {"echo": True, "logprobs": 1}, "echo"),
        ("an echo streamed", COMPLETIONS, {"echo": True, "stream": True}, "echo"),
        ("prompt_logprobs", COMPLETIONS, {"prompt_logprobs": 1}, "prompt_logprobs"),
        ("prompt_logprobs of chat", CHAT, {"prompt_logprobs": 0}, "prompt_logprobs"),
        ("the best of several", COMPLETIONS, {"best_of": 3, "seed": 4, "temperature": 0.8}, "best_of>1"),
        ("a beam", COMPLETIONS, {"use_beam_search": True, "n": 2}, "beam_search"),
        ("a cut prompt", COMPLETIONS, {"truncate_prompt_tokens": -1}, "truncation"),
    ):
        yield Raw(name, path, {**generates(path, name, 70), **more}, stream=bool(more.get("stream")), reason=reason, hand_offs=0)
    whole = {"sampling_params": {"temperature": 0.8, "max_tokens": 8, "n": 2, "seed": 3}}
    yield Raw("two choices of tokens", TOKENS, {**generates(TOKENS, "choices of tokens", 70), **whole}, reason="n>1", hand_offs=0)
    # Mistakes that only the engine sees.
    for name, path, more, status in (
        ("a prompt that is too long", COMPLETIONS, {"prompt": prose("long", 2100), "max_tokens": 20}, 400),
        ("a prompt that is too long, streamed", CHAT, {**generates(CHAT, "long chat", 2100), "stream": True}, 400),
        ("a temperature below 0", CHAT, {**generates(CHAT, "cold", 50), "temperature": -3}, 400),
        ("a schema that is none", CHAT, {**generates(CHAT, "no schema", 50), "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "nothing"}}}}, 400),
        ("two choices that are alike", COMPLETIONS, {**generates(COMPLETIONS, "alike", 50), "n": 2}, 400),
    ):
        yield Raw(name, path, more, stream=bool(more.get("stream")), reason="rejected", hand_offs=0, status=status)


def plain(value, cached):
    """An answer without what is drawn anew for each request."""
    if isinstance(value, dict):
        if "input_tokens" in value:  # of messages: all of the prompt, wherever it was cached
            value = {**value, "input_tokens": value["input_tokens"] + sum(value.get(k) or 0 for k in ("cache_read_input_tokens", "cache_creation_input_tokens"))}
        kept = {k: plain(v, cached) for k, v in value.items() if k not in DRAWN and (k not in SPARE or v is not None)}
        return {k: v for k, v in kept.items() if cached or "cache" not in k}
    if isinstance(value, list):
        return [plain(v, cached) for v in value]
    return value


def same(a, b):
    """Whether two answers are equal; numbers with a fraction may differ as the order of sums does."""
    if isinstance(a, float) and isinstance(b, (int, float)):
        return math.isclose(a, b, rel_tol=1e-3, abs_tol=1e-3)
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


def events(text):
    """The events of a stream: their types, and their data."""
    for block in text.split("\n\n"):
        kind, data = "", []
        for line in block.split("\n"):
            if line.startswith("event: "):
                kind = line[len("event: ") :]
            elif line.startswith("data: "):
                data.append(line[len("data: ") :])
        if data:
            yield kind, "\n".join(data)


def gathered(case, text):
    """What a stream has said, however it was cut into events."""
    answer = {"kinds": [], "choices": {}, "said": "", "last": None, "usage": None}
    numbers = []
    for kind, data in events(text):
        if data == "[DONE]":
            kind, part = "[DONE]", {}
        else:
            part = json.loads(data)
            kind = kind or "chunk"
        if SPARE & {k for k, v in part.items() if v is not None}:
            raise AssertionError(f"{case.name}: an event carries a hand-off: {data}")
        if not answer["kinds"] or answer["kinds"][-1] != kind:
            answer["kinds"].append(kind)
        if "sequence_number" in part:
            numbers.append(part["sequence_number"])
        delta = part.get("delta")
        if isinstance(delta, str):  # of responses
            answer["said"] += delta
        elif isinstance(delta, dict):  # of messages
            answer["said"] += (delta.get("text") or "") + (delta.get("partial_json") or "")
        for choice in part.get("choices") or []:
            take(answer["choices"].setdefault(str(choice["index"]), {}), choice, case.cached)
        if part.get("usage"):
            answer["usage"] = plain(part["usage"], case.cached)
        if kind in ("response.completed", "response.incomplete", "message_delta"):
            answer["last"] = plain({k: v for k, v in part.items() if k != "sequence_number"}, case.cached)
    if numbers and numbers != list(range(numbers[0], numbers[0] + len(numbers))):
        raise AssertionError(f"{case.name}: the events' numbers are {numbers}")
    return answer


def take(seen, choice, cached):
    """Adds a piece of a choice to what was seen of it."""
    pieces = {**choice, **(choice.get("delta") or {})}
    for key, value in pieces.items():
        if key in ("index", "delta") or value is None:
            continue
        if key == "tool_calls":
            for call in value:
                function = call.get("function") or {}
                for part in ("name", "arguments"):
                    seen[f"tool {call['index']} {part}"] = seen.get(f"tool {call['index']} {part}", "") + (function.get(part) or "")
        elif isinstance(value, str) and key in ("text", "content"):
            seen[key] = seen.get(key, "") + value
        elif isinstance(value, list):
            seen[key] = seen.get(key, []) + plain(value, cached)
        elif isinstance(value, dict):
            for name, items in value.items():  # logprobs
                if isinstance(items, list):
                    at = f"{key} {name}"
                    seen[at] = seen.get(at, []) + plain(items, cached)
        else:
            seen[key] = value


def ask(client, case, gateway):
    a = client.post(case.path, json=case.body(gateway))
    reason = a.headers.get("x-pdrouter-reason", "")
    if a.status_code != case.status:
        raise AssertionError(f"{case.name}: status {a.status_code}, {a.text[:600]}")
    if case.status != 200:
        error = a.json()["error"]
        return {"status": a.status_code, "error": {k: error.get(k) for k in ("message", "type", "code", "param")}}, reason
    if not case.stream:
        if '"do_remote_prefill"' in a.text or '"remote_engine_id"' in a.text:
            raise AssertionError(f"{case.name}: the answer carries a hand-off")
        return plain(a.json(), case.cached), reason
    return gathered(case, a.text), reason


def prompt_tokens(answer):
    """How long the prompt was, as usage says it; 0 if it says nothing."""
    for at in (answer, answer.get("last") or {}, (answer.get("last") or {}).get("response") or {}):
        usage = at.get("usage") or {}
        if usage:
            return usage.get("prompt_tokens") or usage.get("input_tokens") or 0
    return 0


def stored(client, gateway):
    """A conversation that the engine keeps, and an answer that it works on by itself: name to answer and reason."""
    answers = {}

    def post(name, body):
        a = client.post(RESPONSES, json={"model": MODEL, "temperature": 0, "max_output_tokens": 12, **body})
        answers[name] = (plain(a.json(), False), a.headers.get("x-pdrouter-reason", ""))
        return a.json().get("id", "")

    first = post("a response that is kept", {"input": prose("first turn", 60)})
    post("the turn after it", {"input": prose("second turn", 40), "previous_response_id": first})
    working = post("in the background", {"input": prose("background", 60), "background": True})
    for _ in range(300):
        a = client.get(f"{RESPONSES}/{working}")
        if a.status_code != 200 or a.json().get("status") not in ("queued", "in_progress"):
            break
        time.sleep(0.1)
    answers["what was made in the background"] = (plain(a.json(), False), a.headers.get("x-pdrouter-reason", ""))
    again = client.get(f"{RESPONSES}/{first}")
    answers["the kept response again"] = (plain(again.json(), False), again.headers.get("x-pdrouter-reason", ""))
    return answers


def connect(url, key):
    return httpx2.Client(base_url=url, headers={"Authorization": f"Bearer {key}"}, timeout=180)
