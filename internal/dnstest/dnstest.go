// Package dnstest has a DNS server for tests: real datagrams on loopback, whose answers a test changes while it runs.
package dnstest

import (
	"encoding/binary"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
)

// Service is one SRV record.
type Service struct {
	Target string // a name that has addresses
	Port   uint16
}

// Fake answers questions for addresses and services. It is safe for concurrent use.
type Fake struct {
	conn net.PacketConn

	mu        sync.Mutex
	addresses map[string][]netip.Addr
	services  map[string][]Service
	code      byte // of every answer
	silent    bool
	asked     map[string]int
}

// The response codes that a Fake may give to everything.
const (
	NoError  = 0
	ServFail = 2
	Refused  = 5
)

// Start starts a server that ends with the test. It knows no name.
func Start(t testing.TB) *Fake {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &Fake{conn: conn, addresses: map[string][]netip.Addr{}, services: map[string][]Service{}, asked: map[string]int{}}
	var wg sync.WaitGroup
	wg.Go(f.serve)
	t.Cleanup(func() { _ = conn.Close(); wg.Wait() })
	return f
}

// Address returns host:port of the server.
func (f *Fake) Address() string { return f.conn.LocalAddr().String() }

// Set has a name have these addresses; none is an answer without any.
func (f *Fake) Set(name string, addresses ...string) {
	list := []netip.Addr{}
	for _, a := range addresses {
		list = append(list, netip.MustParseAddr(a))
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.addresses[strings.TrimSuffix(name, ".")] = list
}

// SetServices has a name have these services.
func (f *Fake) SetServices(name string, services ...Service) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.services[strings.TrimSuffix(name, ".")] = services
}

// Forget has there be no such name.
func (f *Fake) Forget(name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.addresses, strings.TrimSuffix(name, "."))
}

// Fail gives every question this response code; NoError ends that.
func (f *Fake) Fail(code byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.code = code
}

// Silence has the server answer nothing, or answer again.
func (f *Fake) Silence(on bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.silent = on
}

// Asked returns how often there were questions about a name.
func (f *Fake) Asked(name string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.asked[strings.TrimSuffix(name, ".")]
}

func (f *Fake) serve() {
	b := make([]byte, 4096)
	for {
		n, from, err := f.conn.ReadFrom(b)
		if err != nil {
			return
		}
		if reply := f.answer(b[:n]); reply != nil {
			_, _ = f.conn.WriteTo(reply, from)
		}
	}
}

// The types of records that a Fake has.
const (
	typeA    = 1
	typeAAAA = 28
	typeSRV  = 33
)

// answer returns the whole reply to a question (RFC 1035 §4), nil for none.
func (f *Fake) answer(question []byte) []byte {
	if len(question) < 12 {
		return nil
	}
	name, end, ok := readName(question, 12)
	if !ok || len(question) < end+4 {
		return nil
	}
	kind := binary.BigEndian.Uint16(question[end:])
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked[name]++
	if f.silent {
		return nil
	}
	var records [][]byte
	for _, a := range f.addresses[name] {
		if kind == typeA && a.Is4() || kind == typeAAAA && a.Is6() {
			records = append(records, a.AsSlice())
		}
	}
	if kind == typeSRV {
		for _, s := range f.services[name] {
			data := binary.BigEndian.AppendUint16([]byte{0, 1, 0, 1}, s.Port) // priority, weight
			records = append(records, appendName(data, s.Target))
		}
	}
	code := f.code
	_, known := f.addresses[name]
	if code == NoError && !known && f.services[name] == nil {
		code = 3 // there is no such name
	}
	if code != NoError {
		records = nil
	}
	reply := append([]byte{}, question[:2]...)
	reply = append(reply, 0x85, 0x80|code, 0, 1) // an answer with authority; recursion is there; one question
	reply = binary.BigEndian.AppendUint16(reply, uint16(len(records)))
	reply = append(reply, 0, 0, 0, 0)
	reply = append(reply, question[12:end+4]...)
	for _, data := range records {
		reply = append(reply, 0xc0, 12) // the name of the question
		reply = binary.BigEndian.AppendUint16(reply, kind)
		reply = append(reply, 0, 1, 0, 0, 0, 0) // class IN, to be kept for no time
		reply = binary.BigEndian.AppendUint16(reply, uint16(len(data)))
		reply = append(reply, data...)
	}
	return reply
}

// readName returns the name at a place of a message, and where it ends.
func readName(b []byte, at int) (string, int, bool) {
	var parts []string
	for at < len(b) {
		n := int(b[at])
		at++
		if n == 0 {
			return strings.ToLower(strings.Join(parts, ".")), at, true
		}
		if n > 63 || at+n > len(b) {
			break
		}
		parts = append(parts, string(b[at:at+n]))
		at += n
	}
	return "", 0, false
}

func appendName(b []byte, name string) []byte {
	for _, part := range strings.Split(strings.TrimSuffix(name, "."), ".") {
		b = append(append(b, byte(len(part))), part...)
	}
	return append(b, 0)
}
