package bench

import (
	"bytes"
	"errors"
	"fmt"
	"hash/maphash"
	"strconv"
	"strings"
)

// read makes a request of a body and its X-Request-Id. Both legs of a hand-over have the same transfer_id, or decode's names the
// request id of prefill's: stock vLLM goes by either, by its version.
func (s *modelServer) read(body []byte, request string) (*modelSeq, error) {
	text, ok := promptOf(body)
	if !ok {
		return nil, errors.New("the body has no prompt that is text")
	}
	seq := &modelSeq{prompt: max(1, (len(text)+textPerToken-1)/textPerToken), answer: 16}
	if n, err := strconv.Atoi(valueOf(body, "max_tokens")); err == nil {
		seq.answer = n
	} else if n, err := strconv.Atoi(valueOf(body, "max_completion_tokens")); err == nil {
		seq.answer = n
	}
	const size = blockTokens * textPerToken
	var last uint64
	for n := size; n <= len(text); n += size {
		var h maphash.Hash
		h.SetSeed(s.seed)
		maphash.WriteComparable(&h, last)
		_, _ = h.Write(text[n-size : n])
		last = h.Sum64()
		seq.hashes = append(seq.hashes, last)
	}
	switch {
	case isTrue(body, "do_remote_decode"):
		seq.leg, seq.answer = prefillLeg, 1
		if seq.key = valueOf(body, "transfer_id"); seq.key == "" {
			seq.key = request
		}
		if seq.key == "" {
			seq.key = fmt.Sprintf("bench-%d-%d", s.nth, s.drawn.Add(1))
		}
	case isTrue(body, "do_remote_prefill"):
		seq.leg = decodeLeg
		if seq.key = valueOf(body, "transfer_id"); seq.key == "" {
			seq.key = strings.TrimPrefix(valueOf(body, "remote_request_id"), "chatcmpl-") // vLLM's own prefix
		}
		if seq.key == "" {
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

// valueOf is what stands behind a key of a body that the bench or a router has made: a number, or a text without escapes. It is
// empty if there is none.
func valueOf(body []byte, key string) string {
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
