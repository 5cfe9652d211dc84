"""What is asked, what an answer is, and when two answers are the same. Standard library only."""

import dataclasses
import json
import random
import urllib.request

MODEL = "tiny"  # the name it is served under
LENGTHS = (40, 63, 64, 65, 130, 300, 700, 1400)  # characters of a prompt; with the bundle's model these are tokens
LIMIT = 24  # tokens of an answer

_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def get(url, timeout=10):
    with _direct.open(url, timeout=timeout) as answer:
        return answer.read().decode()


@dataclasses.dataclass(frozen=True)
class Question:
    name: str
    path: str
    body: dict


@dataclasses.dataclass
class Answer:
    text: str = ""
    tokens: list = dataclasses.field(default_factory=list)
    gaps: list = dataclasses.field(default_factory=list)  # of each token: by how much it was likelier than the next best, in nats
    ending: str = ""
    prompt_tokens: int = 0
    reason: str = ""  # the gateway's word for how it was served


def prose(seed, length):
    dice, words = random.Random(seed), [seed]
    while sum(len(w) + 1 for w in words) <= length:
        words.append("".join(dice.choices("abcdefghijklmnopqrstuvwxyz", k=dice.randint(2, 9))))
    return " ".join(words)[:length]


def questions(count):
    """count requests of all routes and lengths; no two prompts begin alike, so that nothing of one serves another."""
    out = []
    for n in range(count):
        stream, chat, length = n % 2 == 1, n // 2 % 2 == 1, LENGTHS[n // 4 % len(LENGTHS)]
        body = {"model": MODEL, "max_tokens": LIMIT, "temperature": 0, "return_tokens_as_token_ids": True}
        if chat:
            body |= {"messages": [{"role": "user", "content": prose(f"{n} chat", length)}], "logprobs": True, "top_logprobs": 2}
        else:
            body |= {"prompt": prose(f"{n} completions", length), "logprobs": 2}
        if stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        name = f"{'chat' if chat else 'completions'}{' streamed' if stream else ''}, {length} characters"
        out.append(Question(name, "/v1/chat/completions" if chat else "/v1/completions", body))
    return out


def ask(url, question, timeout=600):
    """Asks one question. Raises what urllib raises, and ValueError for an answer that is cut or none."""
    raw = json.dumps(question.body).encode()
    asked = urllib.request.Request(url + question.path, raw, {"Content-Type": "application/json"})
    with _direct.open(asked, timeout=timeout) as got:
        answer = Answer(reason=got.headers.get("x-pdrouter-reason", ""))
        if not question.body.get("stream"):
            take(answer, json.loads(got.read()))
            return answer
        for line in got:
            said = line.decode().strip().removeprefix("data: ")
            if said == "[DONE]":
                return answer
            if said:
                take(answer, json.loads(said))
    raise ValueError("the stream ended without its last event")


def take(answer, piece):
    """Adds a whole answer, or an event of a stream."""
    if "error" in piece:
        raise ValueError(f"an error: {piece['error']}")
    answer.prompt_tokens = (piece.get("usage") or {}).get("prompt_tokens", answer.prompt_tokens)
    for choice in piece.get("choices", ()):
        said = choice.get("message") or choice.get("delta") or choice
        answer.text += said.get("content") or said.get("text") or ""
        answer.ending = choice.get("finish_reason") or answer.ending
        for token, best in likely(choice.get("logprobs") or {}):
            answer.tokens.append(token)
            best = sorted(best, reverse=True)
            answer.gaps.append(best[0] - best[1] if len(best) > 1 else 0.0)


def likely(logprobs):
    """Tokens and the log probabilities of the best two, of either route."""
    for one in logprobs.get("content") or ():
        yield one["token"], [b["logprob"] for b in one["top_logprobs"]]
    yield from ((t, list(best.values())) for t, best in zip(logprobs.get("tokens") or (), logprobs.get("top_logprobs") or ()))


SAME, TIE, OTHER = "same", "tie", "other"


def compare(alone, split, margin):
    """Returns SAME, TIE or OTHER, and what differs. TIE: they part at a token that one engine alone preferred by less than margin, as
    two ways to compute the same may where sums are rounded in another order."""
    if not alone.tokens or alone.prompt_tokens == 0:
        return OTHER, "one engine alone gave no tokens"
    if not split.tokens:
        return OTHER, split.text or "no tokens"
    if split.prompt_tokens != alone.prompt_tokens:
        return OTHER, f"a prompt of {split.prompt_tokens} tokens; want {alone.prompt_tokens}"
    if (split.tokens, split.text, split.ending) == (alone.tokens, alone.text, alone.ending):
        return SAME, ""
    at = next((n for n, (a, s) in enumerate(zip(alone.tokens, split.tokens)) if a != s), min(len(alone.tokens), len(split.tokens)))
    if at < min(len(alone.tokens), len(split.tokens)) and alone.gaps[at] < margin:
        return TIE, f"token {at}, {alone.gaps[at]:.4f} nats"
    return OTHER, f"from token {at}: {split.text!r} ({split.ending}); want {alone.text!r} ({alone.ending})"
