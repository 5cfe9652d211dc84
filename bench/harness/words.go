package harness

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// hasWords reports whether a name contains a text in whole words: "c=1" is in "pull c=1 stream" and not in "pull c=16". A number is one
// word, with what it has behind its point.
func hasWords(name, text string) bool {
	for from := 0; ; {
		i := strings.Index(name[from:], text)
		if i < 0 {
			return false
		}
		if at := from + i; !inWord(name, at) && !inWord(name, at+len(text)) {
			return true
		}
		_, size := utf8.DecodeRuneInString(name[from+i:])
		from += i + max(size, 1)
		if from > len(name) {
			return false
		}
	}
}

// inWord reports whether one word goes on from before a place of a text until behind it.
func inWord(s string, at int) bool {
	before, size := utf8.DecodeLastRuneInString(s[:at])
	next, width := utf8.DecodeRuneInString(s[at:])
	if size == 0 || width == 0 {
		return false
	}
	if partOfWord(before) && partOfWord(next) {
		return true
	}
	further, _ := utf8.DecodeRuneInString(s[at+width:])
	earlier, _ := utf8.DecodeLastRuneInString(s[:at-size])
	return unicode.IsDigit(before) && isPoint(next) && unicode.IsDigit(further) || unicode.IsDigit(earlier) && isPoint(before) && unicode.IsDigit(next)
}

func partOfWord(r rune) bool { return unicode.IsLetter(r) || unicode.IsDigit(r) || r == '_' }

func isPoint(r rune) bool { return r == '.' || r == ',' }
