package openai

import (
	"bytes"
	"fmt"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"unicode"

	"pdrouter/router/openai/jsonscan"
	"pdrouter/router/reason"
)

// MediaRules says where the media of a body may be.
type MediaRules struct {
	Private bool
	Hosts   []string // nil: any
}

// refuses says why a body may not name the URL; "" if it may. What different readers may take for different hosts is refused.
func (h *MediaRules) refuses(raw []byte) string {
	text := bytes.TrimLeftFunc(raw, func(r rune) bool { return r <= ' ' || unicode.IsSpace(r) })
	colon := bytes.IndexByte(text, ':')
	switch {
	case bytes.HasPrefix(text, []byte("//")) && !encodedData(text):
		return "has no scheme"
	case colon < 0 || bytes.EqualFold(text[:colon], []byte("data")):
		return "" // not a URL, or one that engines do not fetch
	}
	if isControl := func(r rune) bool { return r < ' ' || r == 0x7f }; bytes.ContainsFunc(text, isControl) { // some readers pass over them
		text = bytes.Map(func(r rune) rune {
			if isControl(r) {
				return -1
			}
			return r
		}, text)
	}
	scheme, rest, _ := strings.Cut(string(text), ":")
	scheme = strings.ToLower(scheme)
	authority, ofHost := strings.CutPrefix(rest, "//")
	switch {
	case scheme == "data", strings.Trim(scheme, "abcdefghijklmnopqrstuvwxyz0123456789+.-") != "":
		return ""
	case scheme == "file":
		if h.Private && len(h.Hosts) == 0 {
			return ""
		}
		return "names a file of the engine"
	case !ofHost && scheme != "http" && scheme != "https":
		return ""
	case !ofHost || len(text) < len(raw):
		return "is not written as URLs are"
	}
	if i := strings.IndexAny(authority, "/?#"); i >= 0 {
		authority = authority[:i]
	}
	if strings.ContainsFunc(authority, func(r rune) bool { return r <= ' ' || r >= 0x7f || r == '\\' }) {
		return "has a character in its host that must be encoded"
	}
	u, err := url.Parse("http://" + authority)
	switch {
	case err != nil:
		return "is not a URL"
	case u.User != nil:
		return "has credentials"
	case u.Hostname() == "":
		return "has no host"
	}
	host := strings.TrimSuffix(strings.ToLower(u.Hostname()), ".")
	if len(h.Hosts) > 0 && !h.listed(host) {
		return "names a host that is not allowed"
	}
	if !h.Private && len(h.Hosts) == 0 && privateHost(host) {
		return "names a private host"
	}
	return ""
}

// encodedData reports whether a text that begins as a URL without a scheme does is rather data in base64.
func encodedData(text []byte) bool {
	return len(text) >= 256 && !bytes.ContainsAny(text[:256], ".:@[]%-_?#\\")
}

func (h *MediaRules) listed(host string) bool {
	for _, allowed := range h.Hosts {
		if host == allowed || allowed[0] == '.' && strings.HasSuffix(host, allowed) {
			return true
		}
	}
	return false
}

// privateHost reports whether a host's name says that it is not of the public Internet, or is none that all readers take for
// the same.
func privateHost(host string) bool {
	if a, err := netip.ParseAddr(host); err == nil {
		return privateAddr(a)
	}
	if strings.ContainsAny(host, ":%") {
		return true
	}
	labels := strings.Split(host, ".")
	last := labels[len(labels)-1]
	if last == "" || last[0]-'0' <= 9 { // no domain begins with a digit: readers take it for a number
		a, ok := numericAddr(labels)
		return !ok || privateAddr(a)
	}
	switch host {
	case "metadata.goog", "metadata.tencentyun.com", "api.metadata.cloud.ibm.com":
		return true // public names of the address 169.254.169.254 and the like: metadata services of clouds
	}
	switch last {
	case "local", "localhost", "localdomain", "internal", "lan", "intranet", "svc":
		return true
	}
	return len(labels) == 1 || strings.HasSuffix(host, ".home.arpa")
}

// numericAddr reads an address of one to four numbers, each decimal, octal or hexadecimal, of which the last fills the rest.
func numericAddr(labels []string) (netip.Addr, bool) {
	if len(labels) > 4 {
		return netip.Addr{}, false
	}
	var sum uint64
	for i, l := range labels {
		if len(l) > 1 && l[0] == '0' && l[1]|0x20 != 'x' {
			l = "0o" + l[1:]
		}
		n, err := strconv.ParseUint(l, 0, 32)
		bits := 8
		if i == len(labels)-1 {
			bits = 8 * (5 - len(labels))
		}
		if err != nil || n >= 1<<bits {
			return netip.Addr{}, false
		}
		sum = sum<<bits | n
	}
	return netip.AddrFrom4([4]byte{byte(sum >> 24), byte(sum >> 16), byte(sum >> 8), byte(sum)}), true
}

// wireServer is a public address that every virtual machine of Azure reaches as its platform's own: certificates, settings.
var wireServer = netip.AddrFrom4([4]byte{168, 63, 129, 16})

// privateAddr reports whether an address is not one of the public Internet, or stands for one that is not.
func privateAddr(a netip.Addr) bool {
	a = a.WithZone("").Unmap()
	if a.IsPrivate() || a.IsLoopback() || a.IsLinkLocalUnicast() || a.IsUnspecified() || a.IsMulticast() {
		return true
	}
	b := a.As16()
	if a.Is4() {
		return b[12] == 0 || b[12] >= 240 || b[12] == 100 && b[13]&0xc0 == 64 || b[12] == 198 && b[13]&0xfe == 18 ||
			b[12] == 192 && b[13] == 0 && b[14] == 0 || a == wireServer
	}
	inner := func(from int) bool { return privateAddr(netip.AddrFrom4([4]byte(b[from : from+4]))) }
	switch {
	case bytes.HasPrefix(b[:], []byte{0, 0x64, 0xff, 0x9b, 0, 1}), bytes.HasPrefix(b[:], []byte{0x20, 0x01, 0, 0}):
		return true // a network's own address translation, and tunnels to the hosts that use it
	case bytes.Equal(b[:12], make([]byte, 12)), bytes.HasPrefix(b[:], []byte{0, 0x64, 0xff, 0x9b}),
		bytes.Equal(b[:12], []byte{8: 0xff, 9: 0xff, 11: 0}), b[8]&^2 == 0 && b[9] == 0 && b[10] == 0x5e && b[11] == 0xfe:
		return inner(12)
	case b[0] == 0x20 && b[1] == 0x02:
		return inner(2)
	}
	return b[0]&0xfe == 0xfc || b[0] == 0xfe && b[1]&0xc0 == 0xc0 // site-local addresses of old
}

// sought is what is looked for in a value.
type sought uint8

const (
	forContent sought = iota // a message, an array of them, or their content, which may name media
	forMedia                 // a part of content that may be a URL or hold one
	forAnyURL                // what any string of may be a URL
)

// within is what is looked for in a member of an object in which l is; false if that is not looked into.
func (l sought) within(key []byte) (sought, bool) {
	switch string(key) {
	case "content", "output":
		return l, l != forMedia
	case "url", "image_url", "audio_url", "video_url", "file_url":
		return max(l, forMedia), true
	case "image", "audio", "video", "file", "source":
		return max(l, forMedia), l != forMedia
	}
	return l, l == forAnyURL
}

// look walks over a value in which something is looked for; depth is that of what holds it. It reports false after a mistake.
func (p *bodyParser) look(l sought, depth int) bool {
	switch c := p.Peek(); {
	case c == '"' && l != forContent:
		return p.mediaURL()
	case c == '[':
		n := 0
		for ok := p.Array(depth + 1); ok && p.Element(&n); {
			ok = p.look(l, depth+1)
		}
	case c == '{':
		m, ok := p.Object(depth + 1)
		for ok && p.Member(&m) {
			switch inner, looks := l.within(m.Key); {
			case p.lim.Isolate && string(m.Key) == "uuid":
				p.mediaID(&m, depth+1)
			case l == forContent && string(m.Key) == "type":
				p.partType(depth + 1)
			case looks:
				p.media = p.media || inner >= forMedia
				p.look(inner, depth+1)
			default:
				p.media = p.media || l == forContent && isMediaKey(m.Key)
				p.Value(depth + 1)
			}
		}
	default:
		return p.Value(depth)
	}
	return p.Why == ""
}

// partType reads the type of a part of content.
func (p *bodyParser) partType(depth int) {
	from := p.Pos
	if !p.Value(depth) {
		return
	}
	switch string(p.Bytes[from:p.Pos]) {
	case `"text"`, `"input_text"`, `"output_text"`, `"refusal"`, `"thinking"`, `"tool_reference"`:
	default:
		p.media = true
	}
}

// isMediaKey reports whether stock vLLM takes a part of content for media by this member, whatever its type says. It is for keys that name
// no URL.
func isMediaKey(key []byte) bool {
	switch string(key) {
	case "input_image", "image_embeds", "image_pil", "audio_embeds", "input_audio", "video_embeds", "prompt_embeds":
		return true
	}
	return false
}

// MaxMediaIDs is how many media ids one body may have, and MaxMediaID how long one may be: both legs of every choice replace each.
const (
	MaxMediaIDs = 1024
	MaxMediaID  = 4 << 10
)

// mediaID reads the id that engines cache a part of content by. Engines make a text of whatever is not null, so only strings are accepted.
func (p *bodyParser) mediaID(m *jsonscan.Members, depth int) {
	c, from := p.Peek(), p.Pos
	if !p.Value(depth) || c == 'n' {
		return
	}
	if c != '"' || p.Pos-from > MaxMediaID {
		p.refuse(reason.BadField, "uuid", fmt.Sprintf("must be a string of at most %d bytes", MaxMediaID))
		return
	}
	if p.mediaIDs++; p.mediaIDs > MaxMediaIDs {
		p.refuse(reason.OverCap, "uuid", fmt.Sprintf("must be set at most %d times", MaxMediaIDs))
		return
	}
	p.own(OwnMediaID, inContent, m)
}

// mediaURL reads a string that may be a URL.
func (p *bodyParser) mediaURL() bool {
	raw, escaped, ok := p.Str()
	if !ok || p.lim.Media == nil {
		return ok
	}
	text := raw
	if escaped {
		text = jsonscan.Unescape(nil, raw)
	}
	if why := p.lim.Media.refuses(text); why != "" && p.bad == nil {
		p.bad = ErrBadRequest(reason.MediaHost, "", "A URL of the content %s.", why)
	}
	return p.Why == ""
}
