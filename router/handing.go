package router

import "bytes"

// capped reports whether an answer of one token ended at its limit. In a JSON string these bytes would have backslashes.
func capped(answer []byte) bool {
	for _, end := range []string{`"finish_reason":"length"`, `"stop_reason":"max_tokens"`, `"status":"incomplete"`} {
		if bytes.Contains(answer, []byte(end)) {
			return true
		}
	}
	return false
}
