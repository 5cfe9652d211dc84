"""Meets the limit of requests per minute with the openai client: limits.py URL LIMIT.

LIMIT requests are answered, and the next one is a RateLimitError that says when to come back. A client that may retry
does so when it was told, and is answered. The key is taken from OPENAI_API_KEY.
"""

import sys

import openai


def main():
    url, limit = sys.argv[1], int(sys.argv[2])
    once = openai.OpenAI(base_url=url + "/v1", max_retries=0)
    retry = openai.OpenAI(base_url=url + "/v1", max_retries=8)

    def ask(client):
        return client.completions.with_raw_response.create(model="tiny", prompt="one two", max_tokens=2)

    first = ask(once)
    assert first.headers["x-ratelimit-limit-requests"] == str(limit), first.headers
    refused = None
    for _ in range(10 * limit):
        try:
            ask(once)
        except openai.RateLimitError as e:
            refused = e
            break
    assert refused is not None, "no limit was met"
    assert refused.status_code == 429 and str(refused.code) == "429", (refused.status_code, refused.code)
    assert refused.type == "RateLimitError" and "per minute" in refused.message, refused.message
    headers = refused.response.headers
    assert headers["x-pdrouter-reason"] == "over_limit_requests", headers
    assert headers["x-ratelimit-remaining-requests"] == "0", headers
    assert 0 < int(headers["retry-after-ms"]) <= 60_000 and int(headers["retry-after"]) >= 1, headers

    again = ask(retry)
    assert again.parse().choices[0].text, "no answer"
    assert again.retries_taken <= 3, f"{again.retries_taken} retries: it was not told when to come back"
    print("retries", again.retries_taken)


main()
