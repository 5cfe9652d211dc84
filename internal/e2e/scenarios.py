"""Asks an OpenAI server every scenario, and records the answers or compares them with recorded ones.

    scenarios.py record  URL ANSWERS                  ask one engine, write ANSWERS
    scenarios.py compare URL ANSWERS REPORT KIND...   ask the gateway, compare, write REPORT

KIND is `split` (requests that can be handed from prefill to decode), `alone` (those that one hand-off cannot serve, or
need none) or `refuse` (mistakes of a client, which nobody answers).
Everything is asked at temperature 0, or with a seed, through the openai client, which must not retry. An answer is the text, the token
ids, why it ended, how long the prompt was and what usage said; all of it must be equal. REPORT is JSON: how many
requests, how many prompt tokens, and how many answers gave which reason. The exit status is 1 if any answer differs.
The key is taken from OPENAI_API_KEY, if it is set.
"""

import concurrent.futures
import dataclasses
import json
import os
import random
import sys
import time

import openai

MODEL = "tiny"
BLOCK = 32  # tokens of one KV block
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


@dataclasses.dataclass
class Case:
    name: str
    route: str  # chat or completions
    prompt: object
    stream: bool = False
    usage: bool = False
    max_tokens: int = 20
    temperature: float = 0
    more: dict = dataclasses.field(default_factory=dict)
    forged: dict = dataclasses.field(default_factory=dict)  # only ever sent to the gateway

    def body(self, gateway):
        extra = {"return_token_ids": True, **self.more, **(self.forged if gateway else {})}
        asked = {"model": MODEL, "temperature": self.temperature, "max_tokens": self.max_tokens, "extra_body": extra}
        if self.route == "chat":
            asked["messages"] = [{"role": "system", "content": "Go on."}, {"role": "user", "content": self.prompt}]
        else:
            asked["prompt"] = self.prompt
        if self.stream:
            asked["stream"] = True
            if self.usage:
                asked["stream_options"] = {"include_usage": True}
        return asked


def prose(seed, length):
    """Text of exactly length bytes, which is as many tokens."""
    dice = random.Random(seed)
    words = []
    while sum(len(w) + 1 for w in words) <= length:
        words.append("".join(dice.choices("abcdefghijklmnopqrstuvwxyz", k=dice.randint(2, 9))))
    return " ".join(words)[:length]


def one_by_one():
    """Every route, streaming and not, below, at and above block edges, and over several blocks."""
    lengths = (5, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK, 150, 700, 1500)
    for number, length in enumerate(lengths):
        for route in ("completions", "chat"):
            for stream in (False, True):
                yield Case(
                    f"{route} {length} bytes{' streamed' if stream else ''}",
                    route,
                    prose(f"{route} {length} {stream}", length),
                    stream=stream,
                    usage=stream and number % 2 == 0,
                )
    opening = prose("opening", 10 * BLOCK + 7)
    for number in range(3):
        yield Case(f"shared prefix {number}", "completions", opening + prose(f"ending {number}", 40), stream=number == 1)
    yield Case("the same prompt again", "completions", opening + prose("ending 0", 40))
    yield Case("with a min_tokens", "completions", prose("min", 70), more={"min_tokens": 12})
    yield Case("with foreign fields", "chat", prose("foreign", 70), more={"seed": 2**53 + 1, "user": "é\u2028\"\\", "metadata": {"a": "b"}})
    yield Case("forged hand-off", "completions", prose("forged", 120), forged={"kv_transfer_params": FORGED})
    yield Case("forged hand-off streamed", "chat", prose("forged too", 120), stream=True, forged={"kv_transfer_params": FORGED})
    yield Case("forged in vllm_xargs", "chat", prose("forged xargs", 120), forged={"vllm_xargs": {"kv_transfer_params": FORGED}})


def together():
    """Eight at once, of several lengths, four of them with one prefix."""
    opening = prose("together", 5 * BLOCK)
    for number in range(8):
        begin = opening if number % 2 else ""
        yield Case(
            f"together {number}",
            ("completions", "chat")[number // 2 % 2],
            begin + prose(f"together {number}", 60 + 97 * number),
            stream=number % 4 < 2,
            usage=number == 1,
            max_tokens=32,
        )


def alone():
    yield Case("one token", "chat", prose("one token", 90), max_tokens=1)
    yield Case("one token streamed", "completions", prose("one token streamed", 90), max_tokens=1, stream=True, usage=True)
    yield Case("two choices", "chat", prose("two choices", 210), temperature=0.7, more={"n": 2, "seed": 7})
    yield Case("two prompts", "completions", [prose("first prompt", 130), prose("second prompt", 170)])


def plain(value):
    return value.model_dump() if hasattr(value, "model_dump") else value


def hand_off_in(value):
    """Whether a hand-off that carries anything is left anywhere in an answer."""
    if isinstance(value, dict):
        return value.get("kv_transfer_params") is not None or any(hand_off_in(v) for v in value.values())
    return isinstance(value, list) and any(hand_off_in(v) for v in value)


def ask(client, case, gateway):
    route = client.chat.completions if case.route == "chat" else client.completions
    raw = route.with_raw_response.create(**case.body(gateway))
    parsed = raw.parse()
    parts = [plain(p) for p in parsed] if case.stream else [plain(parsed)]
    choices, usage, prompt, chunks = {}, None, {}, 0
    for part in parts:
        if hand_off_in(part):
            raise AssertionError(f"{case.name}: the answer carries kv_transfer_params")
        if part.get("usage"):
            usage = {key: part["usage"][key] for key in ("prompt_tokens", "completion_tokens", "total_tokens")}
        for choice in part["choices"]:
            seen = choices.setdefault(choice["index"], {"text": "", "ids": [], "finish": None})
            said = choice if case.route == "completions" else choice["delta" if case.stream else "message"]
            text = (said.get("text") if case.route == "completions" else said.get("content")) or ""
            seen["text"] += text
            chunks += bool(text)
            seen["ids"] += choice.get("token_ids") or []
            seen["finish"] = choice.get("finish_reason") or seen["finish"]
            if choice.get("prompt_token_ids"):
                prompt[choice["index"]] = len(choice["prompt_token_ids"])
        if part.get("prompt_token_ids"):
            prompt[0] = len(part["prompt_token_ids"])
    if not all(choice["finish"] and choice["ids"] for choice in choices.values()):
        raise AssertionError(f"{case.name}: an answer without end or tokens: {choices}")
    answer = {"choices": [choices[index] for index in sorted(choices)], "usage": usage, "prompt": sum(prompt.values())}
    return answer, chunks, raw.headers.get("x-pdrouter-reason", "")


def connect(url, **more):
    return openai.OpenAI(**{"base_url": url + "/v1", "api_key": os.environ.get("OPENAI_API_KEY", "none"), "max_retries": 0, "timeout": 120, **more})


def refuse(url):
    """Mistakes of a client are the client's exceptions, with a message, and none of them is retried."""
    client, turn = connect(url), [{"role": "user", "content": "hello"}]
    wrong = []

    def expect(name, kind, call):
        try:
            call()
        except kind as error:
            body = error.body if isinstance(error.body, dict) else {}
            if not body.get("message") or not body.get("type"):
                wrong.append(f"{name}: the error has no message or type: {error.body!r}")
        except Exception as error:
            wrong.append(f"{name}: {error!r}; want {kind.__name__}")
        else:
            wrong.append(f"{name}: was answered; want {kind.__name__}")
        print(f"    refuse {name}\n", end="", flush=True)

    create = client.chat.completions.create
    expect("a model nobody serves", openai.NotFoundError, lambda: create(model="nobody", messages=turn))
    expect("max_tokens below 1", openai.BadRequestError, lambda: create(model=MODEL, messages=turn, max_tokens=0))
    expect("too many choices", openai.BadRequestError, lambda: create(model=MODEL, messages=turn, n=1000))
    expect("a route that is none", openai.NotFoundError, lambda: client.embeddings.create(model=MODEL, input="hello", encoding_format="float"))
    if os.environ.get("OPENAI_API_KEY"):
        other = connect(url, api_key="sk-not-a-key")
        expect("a wrong key", openai.AuthenticationError, lambda: other.chat.completions.create(model=MODEL, messages=turn))
        expect("a wrong key for the models", openai.AuthenticationError, other.models.list)
    return wrong


def run(url, gateway, kinds):
    client = connect(url)
    models = [model.id for model in client.models.list()]
    if MODEL not in models:
        raise AssertionError(f"/v1/models lists {models}")
    answers, reasons, streamed = {}, {}, {}

    def one(case):
        began = time.monotonic()
        try:
            answers[case.name], chunks, reasons[case.name] = ask(client, case, gateway)
            if case.stream and len(answers[case.name]["choices"][0]["ids"]) > 8:
                streamed[case.name] = chunks > 1
        except Exception as error:  # one failure must not hide the others
            answers[case.name], reasons[case.name] = {"error": repr(error)}, ""
        print(f"    {case.name}: {(time.monotonic() - began) * 1000:.0f} ms {reasons[case.name]}\n", end="", flush=True)

    if "split" in kinds:
        for case in one_by_one():
            one(case)
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            list(pool.map(one, together()))
    if "alone" in kinds:
        for case in alone():
            one(case)
    # An engine that is starved of CPU sends its tokens in one piece now and then, a gateway that waits for all always.
    if streamed and sum(streamed.values()) * 2 < len(streamed):
        raise AssertionError(f"only {sum(streamed.values())} of {len(streamed)} streamed answers came in pieces")
    return answers, reasons


def distinct(answers):
    """Answers that were equal whatever the prompt would prove nothing."""
    heads = [tuple(a["choices"][0]["ids"][:8]) for a in answers.values() if len(a["choices"][0]["ids"]) >= 8]
    return len(set(heads)), len(heads)


def main():
    verb, url, path = sys.argv[1:4]
    if verb == "record":
        answers, _ = run(url, False, ("split", "alone"))
        failed = [f"{name}: {answer['error']}" for name, answer in answers.items() if "error" in answer]
        if failed:
            sys.exit("\n".join(failed))
        different, of = distinct(answers)
        print(f"    {len(answers)} answers recorded, {different} of {of} differ in their first 8 tokens")
        if different < of * 0.8:
            sys.exit("the model answers alike whatever it is asked; equal answers would prove nothing")
        with open(path, "w") as file:
            json.dump(answers, file, indent=1, sort_keys=True)
        return
    report_path, kinds = sys.argv[4], sys.argv[5:]
    with open(path) as file:
        want = json.load(file)
    got, reasons = run(url, True, kinds)
    wrong = [name for name in got if got[name] != want[name]]
    for name in wrong:
        print(f"    DIFFERENT {name}\n      got  {json.dumps(got[name])[:900]}\n      want {json.dumps(want[name])[:900]}")
    for mistake in refuse(url) if "refuse" in kinds else ():
        wrong.append(mistake)
        print(f"    NOT REFUSED {mistake}")
    report = {
        "requests": len(got),
        "prompt_tokens": sum(want[name]["prompt"] for name in got),
        "reasons": {reason: list(reasons.values()).count(reason) for reason in set(reasons.values())},
        "wrong": wrong,
    }
    with open(report_path, "w") as file:
        json.dump(report, file)
    print(f"    {len(got)} answers compared, {len(wrong)} mistakes", flush=True)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
