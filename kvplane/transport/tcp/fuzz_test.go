package tcp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"testing"

	"github.com/google/go-cmp/cmp"

	"pdrouter/kvplane/memory"
	"pdrouter/kvplane/transfer"
	"pdrouter/kvplane/transport/transporttest"
	"pdrouter/metadata"
)

// FuzzTCPInbound: whatever a peer with the secret sends, nothing outside registered memory changes and the transport
// closes.
func FuzzTCPInbound(f *testing.F) {
	f.Add(uint64(0), frame{kind: frameMessage, length: 2}.append(nil), []byte("hi"))
	six := chunkHead(1, transfer.Range{Remote: 1, Length: 6})
	f.Add(uint64(4090), six[:frameBytes], append(six[frameBytes:], "abcdef"...))
	f.Add(uint64(4091), six[:frameBytes], append(six[frameBytes:], "abcdef"...))
	f.Add(uint64(0), frame{kind: frameEnd, seq: 1}.append(nil), []byte{})
	f.Fuzz(func(t *testing.T, offset uint64, header, body []byte) {
		mem, free, err := memory.Allocate(3 * 4096)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = free() }()
		middle := memory.Region{Base: memory.Of(mem).Base + 4096, Length: 4096}
		tr := New(Config{})
		blob, _, err := tr.Open("d@1", []memory.Region{middle})
		if err != nil {
			t.Fatal(err)
		}
		n := &transporttest.Node{T: t, Transport: tr, Record: metadata.Record{Agent: "d@1", Blob: blob}}
		conn, err := dialRaw(t, n, blobOf(t, n).Secret)
		if err != nil {
			t.Fatal(err)
		}
		if len(body) >= stripBytes { // aim near the memory
			body = bytes.Clone(body)
			binary.LittleEndian.PutUint64(body, middle.Base+offset)
		}
		_, _ = conn.Write(append(header, body...)) // it may have closed the connection
		_ = conn.(*net.TCPConn).CloseWrite()
		closed(t, conn)
		tr.Poll(nil)
		if err := tr.Close(); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(mem[:4096], make([]byte, 4096)) || !bytes.Equal(mem[8192:], make([]byte, 4096)) {
			t.Error("memory outside was changed")
		}
	})
}

// FuzzTCPFrame: what parseStrips lets pass lies in registered memory on both sides and is as long as the frame says,
// and encodes to the same bytes.
func FuzzTCPFrame(f *testing.F) {
	into, from := memory.Set{{Base: 1000, Length: 100}, {Base: 5000, Length: 4 << 20}}, memory.Set{{Base: 900, Length: 3 << 20}}
	f.Add(chunkHead(1, transfer.Range{Remote: 1000, Length: 100}))
	f.Add(chunkHead(1, transfer.Range{Remote: 1000, Length: 50}, transfer.Range{Remote: 5000, Length: maxChunk - 50}))
	f.Add(chunkHead(1, transfer.Range{Remote: 1000, Length: 101}))
	f.Add(chunkHead(1, transfer.Range{Remote: 5000, Length: 1 << 63}, transfer.Range{Remote: 5000, Length: 1 << 63}))
	f.Add(stripsHead(framePull, 3, transfer.Range{Remote: 5000, Length: maxPull, Local: 900}))
	f.Add(stripsHead(framePull, 3, transfer.Range{Remote: 5000, Length: maxPull, Local: 900}, transfer.Range{Remote: 1000, Length: 1, Local: 900}))
	f.Add(stripsHead(framePull, 3, transfer.Range{Remote: 5000, Length: 1 << 20, Local: ^uint64(0) - 5}))
	f.Add(frame{kind: frameEnd, seq: 9, count: 5, length: 3}.append(nil))
	f.Fuzz(func(t *testing.T, raw []byte) {
		in := bytes.NewReader(raw)
		var header [frameBytes]byte
		got, err := readFrame(in, header[:])
		if err != nil {
			return
		}
		if !bytes.Equal(got.append(nil), raw[:frameBytes]) {
			t.Fatalf("%+v encodes to other bytes", got)
		}
		if got.kind != frameChunk && got.kind != framePull {
			return
		}
		table, payload, err := got.strips()
		if err != nil {
			if !errors.Is(err, errFrame) {
				t.Errorf("%v is no bad frame", err)
			}
			return
		}
		body := make([]byte, table)
		if _, err := io.ReadFull(in, body); err != nil {
			return
		}
		ranges, sum, err := parseStrips(got, body, payload, into, from, nil)
		if err != nil {
			if !errors.Is(err, errFrame) {
				t.Errorf("%v is no bad frame", err)
			}
			return
		}
		var total uint64
		var again []byte
		for _, r := range ranges {
			if !into.Holds(r.Remote, r.Length) || got.kind == framePull && !from.Holds(r.Local, r.Length) || r.Length == 0 {
				t.Errorf("%+v has passed", r)
			}
			total += r.Length
			again = appendStrip(again, r)
		}
		if total != sum || got.kind == frameChunk && sum != payload || sum > max(maxChunk, maxPull) || !bytes.Equal(again, body) {
			t.Errorf("%d bytes in %v, %d said", total, ranges, sum)
		}
	})
}

// FuzzTCPBlob: a blob or an offer that is taken in says enough, and encodes to what says the same; and no bytes pass
// for the proof of a handshake.
func FuzzTCPBlob(f *testing.F) {
	blob, err := contact{Version: blobVersion, Addresses: []string{"127.0.0.1:9"}, Secret: make([]byte, secretBytes),
		Memory:  packSpans(memory.Set{{Base: 4096, Length: 4096}, {Base: 1 << 20, Length: 1}}),
		Process: metadata.Process{Boot: "b", Namespaces: "n", PID: 2, Started: 3}}.encode()
	if err != nil {
		f.Fatal(err)
	}
	self := metadata.Process{Boot: "b", Namespaces: "n", PID: 1, Started: 1}
	offer, err := memoryOffer{Process: self, Word: 77, Memory: packSpans(memory.Set{{Base: 1, Length: 1}})}.encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(blob)
	f.Add(offer)
	f.Add(blob[:len(blob)-1])
	f.Add(append(make([]byte, nonceBytes+8), 0, 1, 5, 0, 'r', 'a', 'w', '@', '1'))
	f.Fuzz(func(t *testing.T, raw []byte) {
		if b, err := parseContact(raw); err == nil {
			if len(b.Addresses) == 0 || len(b.Secret) != secretBytes {
				t.Errorf("%+v has passed", b)
			}
			if s, err := unpackSpans(b.Memory); err == nil && s.Holds(0, 1) {
				t.Errorf("%+v hold address 0", s)
			}
			encoded, err := b.encode()
			if err != nil {
				t.Fatal(err)
			}
			if again, err := parseContact(encoded); err != nil || !cmp.Equal(b, again) {
				t.Errorf("%+v comes back as %+v, %v", b, again, err)
			}
		}
		if o, err := parseOffer(raw, self); err == nil && (o.Process.PID <= 0 || o.Process.Boot != "b" || o.Process.Namespaces != "n") {
			t.Errorf("%+v has passed", o)
		}
		conn := struct {
			io.Reader
			io.Writer
		}{bytes.NewReader(raw), io.Discard}
		if g, _, err := admit(conn, "d@1", make([]byte, secretBytes)); err == nil {
			t.Errorf("%+v was admitted", g)
		}
		if _, err := greet(conn, greeting{agent: "p@1"}, "d@1", make([]byte, secretBytes)); err == nil {
			t.Error("a peer without the secret was believed")
		}
	})
}
