package httpsyntax_test

import (
	"strconv"
	"testing"

	"pdrouter/internal/httpsyntax"
)

func TestCutLine(t *testing.T) {
	for _, tt := range []struct {
		in, line, rest string
		ok             bool
	}{
		{"a\r\nb", "a", "b", true},
		{"\r\n", "", "", true},
		{"a\nb\r\n", "", "a\nb\r\n", false},
		{"\n", "", "\n", false},
		{"a\r", "", "a\r", false},
		{"", "", "", false},
	} {
		line, rest, ok := httpsyntax.CutLine([]byte(tt.in))
		if string(line) != tt.line || string(rest) != tt.rest || ok != tt.ok {
			t.Errorf("CutLine(%q) = %q, %q, %t; want %q, %q, %t", tt.in, line, rest, ok, tt.line, tt.rest, tt.ok)
		}
	}
}

func TestContentLength(t *testing.T) {
	for in, want := range map[string]int64{
		"0": 0, "007": 7, "999999999999999999": 999999999999999999,
		"": -1, "-1": -1, "+1": -1, "1 ": -1, "0x1": -1, "1,1": -1, "1000000000000000000": -1,
	} {
		if n, ok := httpsyntax.ContentLength([]byte(in)); n != want || ok != (want >= 0) {
			t.Errorf("ContentLength(%q) = %d, %t; want %d", in, n, ok, want)
		}
	}
}

func TestHexDigit(t *testing.T) {
	for i := range 256 {
		want, err := strconv.ParseUint(string([]byte{byte(i)}), 16, 8)
		if v, ok := httpsyntax.HexDigit(byte(i)); ok != (err == nil) || ok && uint64(v) != want {
			t.Errorf("HexDigit(%#x) = %d, %t; want %d, %t", i, v, ok, want, err == nil)
		}
	}
}

func TestContainsToken(t *testing.T) {
	for in, want := range map[string]bool{
		"close": true, "keep-alive, Close": true, "\tCLOSE ,x": true, ",close,": true,
		"": false, "closed": false, "keep-alive close": false,
	} {
		if got := httpsyntax.ContainsToken([]byte(in), "close"); got != want {
			t.Errorf("ContainsToken(%q) = %t; want %t", in, got, want)
		}
	}
}

func TestTokensAndFieldValues(t *testing.T) {
	for _, tt := range []struct {
		in           string
		token, value bool
	}{
		{"Content-Type", true, true},
		{"!#$%&'*+-.^_`|~09azAZ", true, true},
		{"", false, true},
		{"a b", false, true},
		{"a:b", false, true},
		{"\u00e9", false, true},
		{"a\tb", false, true},
		{"a\r", false, false},
		{"a\n", false, false},
		{"\x00", false, false},
		{"\x7f", false, false},
	} {
		if got := httpsyntax.IsToken([]byte(tt.in)); got != tt.token {
			t.Errorf("IsToken(%q) = %t; want %t", tt.in, got, tt.token)
		}
		if got := httpsyntax.IsFieldValue([]byte(tt.in)); got != tt.value {
			t.Errorf("IsFieldValue(%q) = %t; want %t", tt.in, got, tt.value)
		}
	}
}
