"""Asks an OpenAI server every scenario, and records the answers or compares them with recorded ones.

    scenarios.py record  URL ANSWERS KIND...          ask one engine, write ANSWERS
    scenarios.py compare URL ANSWERS REPORT KIND...   ask the gateway, compare, write REPORT

KIND is `split` (requests that can be handed from prefill to decode), `fan` (several choices, with a hand-off for each), `alone`
(those that one hand-off cannot serve, or need none), `cached` (the same prompts again), `engine` (what only real engines serve),
`stored` (answers that an engine keeps) or `refuse` (mistakes of a client, which nobody answers). `whole` is no kind: the gateway splits nothing, so the reasons that
it gives are not looked at.
Everything is asked at temperature 0, or with a seed. What the openai client knows is asked through it, and it must not retry; the
other routes are asked as routes.py has them. An answer is the text, the token ids, why it ended, how long the prompt was and what
usage said; all of it must be equal, and so must be the reason that the gateway gives for how it was served. REPORT is JSON: how many
requests, how many hand-offs they need, how many prompt tokens those are for, and how many answers gave which reason. The exit
status is 1 if any answer differs. The key is taken from OPENAI_API_KEY, if it is set.
"""

import concurrent.futures
import dataclasses
import json
import os
import sys
import time

import openai
import routes
from routes import BLOCK, FORGED, MODEL, prose


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
    reason: str = "split"
    hand_offs: int = 1

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
    why = {"reason": "max_tokens<=1", "hand_offs": 0}
    yield Case("one token", "chat", prose("one token", 90), max_tokens=1, **why)
    yield Case("one token streamed", "completions", prose("one token streamed", 90), max_tokens=1, stream=True, usage=True, **why)


def fan():
    for stream in (False, True):
        how = " streamed" if stream else ""
        seeded = {"temperature": 0.7, "more": {"n": 2, "seed": 7}}
        yield Case(f"two choices{how}", "chat", prose("two choices", 210), stream=stream, hand_offs=2, **seeded)
        yield Case(f"two prompts{how}", "completions", [prose("first prompt", 130), prose("second prompt", 170)], stream=stream, usage=stream, hand_offs=2)


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
    client, raw = connect(url), routes.connect(url, os.environ.get("OPENAI_API_KEY", "none"))
    models = [model.id for model in client.models.list()]
    if MODEL not in models:
        raise AssertionError(f"/v1/models lists {models}")
    answers, reasons, streamed, cases = {}, {}, {}, {}

    def one(case):
        began = time.monotonic()
        if case.name in cases:
            raise AssertionError(f"two cases are called {case.name}")
        cases[case.name] = case
        try:
            if isinstance(case, routes.Raw):
                answers[case.name], reasons[case.name] = routes.ask(raw, case, gateway)
            else:
                answers[case.name], chunks, reasons[case.name] = ask(client, case, gateway)
                if case.stream and len(answers[case.name]["choices"][0]["ids"]) > 8:
                    streamed[case.name] = chunks > 1
        except Exception as error:  # one failure must not hide the others
            answers[case.name], reasons[case.name] = {"error": repr(error)}, ""
        print(f"    {case.name}: {(time.monotonic() - began) * 1000:.0f} ms {reasons[case.name]}\n", end="", flush=True)

    sources = {"split": (one_by_one, routes.split), "fan": (fan, routes.fan), "alone": (alone, routes.alone), "cached": (routes.cached,), "engine": (routes.engine,)}
    for kind in kinds:
        for source in sources.get(kind, ()):
            for case in source():
                one(case)
    if "split" in kinds:
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            list(pool.map(one, together()))
    if "stored" in kinds:
        for name, (answer, reason) in routes.stored(raw, gateway).items():
            answers[name], reasons[name] = answer, reason
    # An engine that is starved of CPU sends its tokens in one piece now and then, a gateway that waits for all always.
    if streamed and sum(streamed.values()) * 2 < len(streamed):
        raise AssertionError(f"only {sum(streamed.values())} of {len(streamed)} streamed answers came in pieces")
    return answers, reasons, cases


def prompt_tokens(case, answer):
    """How many tokens of prompts the hand-offs of a request are for."""
    if isinstance(case, routes.Raw):
        return case.prompts * (len(case.more.get("token_ids", ())) or routes.prompt_tokens(answer))
    return case.more.get("n", 1) * answer["prompt"]


def distinct(answers):
    """Answers that were equal whatever the prompt would prove nothing."""
    told = [a["choices"][0]["ids"] for a in answers.values() if a.keys() == {"choices", "usage", "prompt"}]
    heads = [tuple(ids[:8]) for ids in told if len(ids) >= 8]
    return len(set(heads)), len(heads)


def main():
    verb, url, path = sys.argv[1:4]
    if verb == "record":
        answers, _, _ = run(url, False, sys.argv[4:])
        failed = [f"{name}: {answer['error']}" for name, answer in answers.items() if isinstance(answer.get("error"), str)]
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
    got, reasons, cases = run(url, True, kinds)
    wrong = [name for name in got if not routes.same(got[name], want[name])]
    otherwise = 0
    for name in wrong:
        print(f"    DIFFERENT {name}\n      got  {json.dumps(got[name])[:1500]}\n      want {json.dumps(want[name])[:1500]}")
    for name, case in cases.items():
        if "whole" not in kinds and name not in wrong and not reasons[name].endswith(case.reason):
            wrong.append(name)
            otherwise += 1
            print(f"    SERVED OTHERWISE {name}: the reason is {reasons[name]!r}; want {case.reason!r}")
    for mistake in refuse(url) if "refuse" in kinds else ():
        wrong.append(mistake)
        print(f"    NOT REFUSED {mistake}")
    served = [name for name in cases if name not in wrong]
    report = {
        "requests": len(got),
        "hand_offs": sum(cases[name].hand_offs for name in served),
        "prompt_tokens": sum(prompt_tokens(cases[name], want[name]) for name in served),
        "reasons": {reason: list(reasons.values()).count(reason) for reason in set(reasons.values())},
        "wrong": wrong,
    }
    with open(report_path, "w") as file:
        json.dump(report, file)
    print(f"    {len(got)} answers compared, {len(wrong)} mistakes", flush=True)
    sys.exit(0 if not wrong else 3 if len(wrong) == otherwise else 1)


if __name__ == "__main__":
    main()
