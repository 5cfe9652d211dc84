package sim

import (
	"bytes"
	"errors"
	"fmt"
	"hash/maphash"
	"strconv"
	"strings"

	"pdrouter/bench/fake"
)

// read makes a request of a body and its X-Request-Id. Both legs of a hand-off have the same transfer_id, or decode's names the
// request id of prefill's: stock vLLM goes by either, by its version.
func (s *modelServer) read(body []byte, request string) (*ModelSeq, error) {
	text, ok := promptOf(body)
	if !ok {
		return nil, errors.New("the body has no prompt that is text")
	}
	seq := &ModelSeq{Prompt: max(1, (len(text)+TextPerToken-1)/TextPerToken), Answer: 16}
	if n, err := strconv.Atoi(ValueOf(body, "max_tokens")); err == nil {
		seq.Answer = n
	} else if n, err := strconv.Atoi(ValueOf(body, "max_completion_tokens")); err == nil {
		seq.Answer = n
	}
	const size = BlockTokens * TextPerToken
	var last uint64
	for n := size; n <= len(text); n += size {
		var h maphash.Hash
		h.SetSeed(s.seed)
		maphash.WriteComparable(&h, last)
		_, _ = h.Write(text[n-size : n])
		last = h.Sum64()
		seq.Runs = append(seq.Runs, Run{last, 1})
	}
	switch {
	case fake.IsTrue(body, "do_remote_decode"):
		seq.Leg, seq.Answer = PrefillLeg, 1
		if seq.Key = ValueOf(body, "transfer_id"); seq.Key == "" {
			seq.Key = request
		}
		if seq.Key == "" {
			seq.Key = fmt.Sprintf("bench-%d-%d", s.nth, s.drawn.Add(1))
		}
	case fake.IsTrue(body, "do_remote_prefill"):
		seq.Leg = DecodeLeg
		if seq.Key = ValueOf(body, "transfer_id"); seq.Key == "" {
			seq.Key = strings.TrimPrefix(ValueOf(body, "remote_request_id"), "chatcmpl-") // vLLM's own prefix
		}
		if seq.Key == "" {
			return nil, errors.New("the body says of no request whose KV to take")
		}
	}
	return seq, nil
}

// promptOf is the text of the first message or prompt of a body that the bench has made, so it holds no escapes.
func promptOf(body []byte) ([]byte, bool) {
	for _, key := range []string{`"content":`, `"prompt":`} {
		if _, rest, ok := bytes.Cut(body, []byte(key)); ok {
			if rest, ok = bytes.CutPrefix(bytes.TrimLeft(rest, " "), []byte(`"`)); ok {
				if end := bytes.IndexByte(rest, '"'); end >= 0 {
					return rest[:end], true
				}
			}
		}
	}
	return nil, false
}

// ValueOf is what stands behind a key of a body that the bench or a router has made: a number, or a text without escapes. It is
// empty if there is none.
func ValueOf(body []byte, key string) string {
	_, rest, ok := bytes.Cut(body, []byte(`"`+key+`":`))
	if !ok {
		return ""
	}
	rest = bytes.TrimLeft(rest, " ")
	if text, ok := bytes.CutPrefix(rest, []byte(`"`)); ok {
		text, _, _ = bytes.Cut(text, []byte(`"`))
		return string(text)
	}
	end := bytes.IndexAny(rest, ",} ")
	if end < 0 || string(rest[:end]) == "null" {
		return ""
	}
	return string(rest[:end])
}
