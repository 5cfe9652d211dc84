package openai

import (
	"bytes"
	"mime"
	"net/http"
	"strconv"
	"strings"

	"pdrouter/internal/gather"
	"pdrouter/internal/httpsyntax"
	"pdrouter/router/openai/answer"
	"pdrouter/router/openai/jsonscan"
	"pdrouter/router/reason"
)

const (
	maxFormParts = 256
	maxFormValue = 64 << 10 // bytes of a part that is read here
)

// form is where the parts of a multipart/form-data body are.
type form struct {
	drop []jsonscan.Span // parts that engines must not get
}

// appendTo appends the body without the parts that engines must not get, but for what goes to gaps.
func (f *form) appendTo(dst []byte, gaps *gather.Gaps, raw []byte) []byte {
	from := 0
	for _, s := range f.drop {
		dst = gaps.Append(dst, raw[from:s.From])
		from = s.To
	}
	return gaps.Append(dst, raw[from:])
}

// ParseForm reads the body of a request that is passed on and is a form. It is read strictly: whatever two readers could
// take for two different things is refused.
func ParseForm(ctype string, raw []byte, lim Limits) (*Body, *Error) {
	kind, params, err := mime.ParseMediaType(ctype)
	boundary := params["boundary"]
	if err != nil || kind != "multipart/form-data" || !isBoundary(boundary) {
		return nil, ErrBadRequest(reason.ContentType, "", "The content type must be multipart/form-data with a boundary.")
	}
	b := &Body{Raw: raw, Shape: ShapePass, N: 1, MaxTokens: -1, Prompts: 1, samplingMembers: -1, Unsplittable: UnsplitPassed}
	f := &form{}
	b.Passthrough = &Passthrough{Method: http.MethodPost, ContentType: "multipart/form-data; boundary=" + quoted(boundary), form: f}
	p := formParser{raw: raw, mark: []byte("\r\n--" + boundary)}
	seen := map[string]bool{}
	for p.next() {
		counts := p.name == "n" || p.name == "max_completion_tokens"
		once := counts || p.name == "model" || p.name == "vllm_xargs" || strings.HasSuffix(p.name, "_transfer_params") || p.name == "request_id"
		switch {
		case once && (seen[p.name] || p.isFile || p.to-p.from > maxFormValue):
			return nil, ErrBadRequest(reason.BadField, p.name, "%s must be one short field.", p.name)
		case p.name == "model":
			b.Model = string(raw[p.from:p.to])
		case everywhere[p.name] == meansTransfer:
			if b.Removed = true; lim.Strict {
				return nil, ErrBadRequest(reason.TransferParams, p.name, "%s is not accepted from clients.", p.name)
			}
			f.drop = append(f.drop, p.whole)
		case counts:
			if e := b.formCount(p.name, string(raw[p.from:p.to]), lim); e != nil {
				return nil, e
			}
		case p.name == "request_id":
			f.drop = append(f.drop, p.whole)
		case p.name == "vllm_xargs":
			if e := formObject(p.name, raw[p.from:p.to]); e != nil {
				return nil, e
			}
		}
		seen[p.name] = true
	}
	if p.why != "" {
		return nil, ErrBadRequest(reason.BadForm, "", "The request body is not a valid form: %s, at byte %d.", p.why, p.at)
	}
	return b, nil
}

// formCount reads how many answers, or beams, a form asks for, or how long one may be.
func (b *Body) formCount(name, value string, lim Limits) *Error {
	n, err := strconv.Atoi(strings.TrimSpace(value))
	switch {
	case err != nil || n < 0:
		return ErrBadRequest(reason.BadField, name, "%s must be a whole number.", name)
	case name != "n":
		b.MaxTokens = n
	case lim.N > 0 && n > lim.N:
		return ErrBadRequest(reason.OverCap, name, "%s must be at most %d.", name, lim.N)
	default:
		b.N = n
	}
	return nil
}

// formObject checks a field that engines read as JSON: an object without transfer fields, at any depth and however they are
// written.
func formObject(name string, value []byte) *Error {
	switch names, ok := answer.ObjectNamesTransfer(value, maxBodyDepth); {
	case !ok:
		return ErrBadRequest(reason.BadField, name, "%s must be a JSON object.", name)
	case names:
		return ErrBadRequest(reason.TransferParams, name, "%s must not name transfer parameters.", name)
	}
	return nil
}

// formParser walks over the parts of a form.
type formParser struct {
	raw  []byte
	mark []byte // CRLF, two dashes and the boundary
	at   int
	n    int
	why  string

	name     string
	isFile   bool
	from, to int           // the part's value
	whole    jsonscan.Span // from its boundary to the next
}

func (p *formParser) fail(why string) bool {
	if p.why == "" {
		p.why = why
	}
	return false
}

// next moves to the next part. It reports false after the last, and after a mistake.
func (p *formParser) next() bool {
	rest := p.raw[p.at:]
	opening := p.mark
	if p.n == 0 { // the first boundary stands at the start
		opening = p.mark[2:]
	}
	if !bytes.HasPrefix(rest, opening) {
		return p.fail("want a boundary")
	}
	start := p.at
	if p.n > 0 {
		start += 2 // its CRLF belongs to the part before
	}
	p.at += len(opening)
	switch rest = p.raw[p.at:]; {
	case bytes.HasPrefix(rest, []byte("--")):
		if end := string(rest[2:]); p.n == 0 || end != "" && end != "\r\n" {
			return p.fail("want nothing behind the last boundary, and a part before it")
		}
		return false
	case !bytes.HasPrefix(rest, []byte("\r\n")):
		return p.fail("want CRLF behind a boundary")
	case p.n == maxFormParts:
		return p.fail("too many parts")
	}
	p.n++
	p.at += 2
	if !p.head() {
		return false
	}
	p.from = p.at
	if bytes.HasPrefix(p.raw[p.at:], p.mark[2:]) { // one reader takes it for the next part, another for this one's value
		return p.fail("want CRLF before a boundary")
	}
	i := bytes.Index(p.raw[p.at:], p.mark)
	if i < 0 {
		return p.fail("want a last boundary")
	}
	p.at += i
	p.to = p.at
	p.whole = jsonscan.Span{From: start, To: p.at + 2}
	if next := p.at + len(p.mark); next < len(p.raw) && p.raw[next] != '\r' && p.raw[next] != '-' {
		return p.fail("a line begins as a boundary does")
	}
	return true
}

// head reads a part's head, including its empty line.
func (p *formParser) head() bool {
	p.name, p.isFile = "", false
	named := false
	for {
		line, rest, ok := httpsyntax.CutLine(p.raw[p.at:])
		if !ok || bytes.IndexByte(line, '\r') >= 0 || len(line) > 4096 {
			return p.fail("want a head of lines that end in CRLF")
		}
		p.at = len(p.raw) - len(rest)
		if len(line) == 0 {
			break
		}
		name, value, found := bytes.Cut(line, []byte{':'})
		if !found || !httpsyntax.IsToken(name) {
			return p.fail("want a header field")
		}
		switch {
		case httpsyntax.IsName(name, "content-disposition"):
			if named || !p.disposition(string(bytes.Trim(value, " \t"))) {
				return p.fail(`want one Content-Disposition: form-data with a name`)
			}
			named = true
		case httpsyntax.IsName(name, "content-type"):
		case httpsyntax.IsName(name, "content-length"): // of no meaning in a form
		case httpsyntax.IsName(name, "content-transfer-encoding"):
			if !isIdentity(bytes.Trim(value, " \t")) {
				return p.fail("want a part that is not encoded")
			}
		default:
			return p.fail("want no other header field than Content-Disposition and Content-Type")
		}
	}
	if !named {
		return p.fail("want a name")
	}
	return true
}

// isIdentity reports whether a Content-Transfer-Encoding leaves the bytes as they are. Forms need none (RFC 7578, 4.7), but clients send it.
func isIdentity(coding []byte) bool {
	return httpsyntax.IsName(coding, "binary") || httpsyntax.IsName(coding, "8bit") || httpsyntax.IsName(coding, "7bit")
}

// disposition reads the value of a part's Content-Disposition.
func (p *formParser) disposition(value string) bool {
	kind, params, err := mime.ParseMediaType(value)
	plain := strings.ReplaceAll(strings.ToLower(value), "filename*", "")
	if err != nil || kind != "form-data" || strings.Contains(plain, "name*") { // which some readers take for the name
		return false
	}
	name := params["name"]
	if name == "" || strings.ContainsAny(name, "\"\\%\x00") {
		return false
	}
	for key := range params {
		if key != "name" && key != "filename" {
			return false
		}
	}
	_, p.isFile = params["filename"]
	p.name = name
	return true
}

// isBoundary reports whether s may be a form's boundary (RFC 2046).
func isBoundary(s string) bool {
	for i := range len(s) {
		if !httpsyntax.IsAlphanumeric(s[i]) && strings.IndexByte("'()+_,-./:=? ", s[i]) < 0 {
			return false
		}
	}
	return s != "" && len(s) <= 70 && s[len(s)-1] != ' '
}

// quoted is a boundary as it stands in a header.
func quoted(boundary string) string {
	if httpsyntax.IsToken([]byte(boundary)) {
		return boundary
	}
	return `"` + boundary + `"`
}
