package tcp

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"io"
	"math/big"
	"net"
	"sync"
	"testing"
	"time"

	"pdrouter/kvplane/transfer"
	"pdrouter/kvplane/transport"
	"pdrouter/kvplane/transport/transporttest"
)

// The shapes of a write: many small ranges, and few large ones.
var writeShapes = []struct {
	title       string
	size, count int
}{
	{"4KiB×1024", 4 << 10, 1024},
	{"64KiB×256", 64 << 10, 256},
	{"1MiB×64", 1 << 20, 64},
}

// BenchmarkTCPWrite posts writes, two at a time, from one agent to another of this process.
func BenchmarkTCPWrite(b *testing.B) {
	for _, path := range []string{PathSocket, PathMemory} {
		for _, s := range writeShapes {
			b.Run(path+"/"+s.title, func(b *testing.B) {
				cfg := Config{Path: path}
				room := 2 * s.size * s.count // every other stretch of each side: nothing merges
				p, d := transporttest.OpenNode(b, New(cfg), "p@1", room, 1), transporttest.OpenNode(b, New(cfg), "d@1", room, 2)
				p.Connect(d)
				var ranges []transfer.Range
				for i := range s.count {
					at := uint64(2 * i * s.size)
					ranges = append(ranges, transfer.Range{Local: p.Base + at, Remote: d.Base + at, Length: uint64(s.size)})
				}
				write := func(n int) {
					posted, ended := 0, 0
					for ended < n {
						for posted < n && posted < ended+2 {
							if err := p.Transport.Write("d@1", uint64(posted), ranges, nil); err != nil {
								b.Fatal(err)
							}
							posted++
						}
						<-p.Transport.Wake()
						p.Poll()
						for _, in := range p.Got {
							if in.Kind != transport.WriteEnded || in.Err != nil {
								b.Fatalf("%+v", in)
							}
							ended++
						}
						p.Got = p.Got[:0]
					}
				}
				write(2)
				b.SetBytes(int64(s.size * s.count))
				b.ReportAllocs()
				b.ResetTimer()
				write(b.N)
				b.StopTimer()
				st := d.Transport.(*Transport).Stats()
				if st.Landed == 0 || path == PathSocket && st.MemoryBytes > 0 || path == PathMemory && st.SocketBytes > 0 {
					b.Errorf("stats %+v", st)
				}
			})
		}
	}
}

// BenchmarkBareLoop sends and receives from memory into memory over a loopback connection, 1 MiB a call.
func BenchmarkBareLoop(b *testing.B) {
	bareLoop(b, nil)
}

// BenchmarkTLSLoop is BenchmarkBareLoop through TLS 1.3, as the standard library has it: what the transport would cost at least if it encrypted.
func BenchmarkTLSLoop(b *testing.B) {
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		b.Fatal(err)
	}
	cert := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, cert, cert, public, private)
	if err != nil {
		b.Fatal(err)
	}
	cfg := &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: private}}, InsecureSkipVerify: true, // who it is does not matter here
	}
	bareLoop(b, cfg)
}

// bareLoop sends and receives over one connection, through TLS if there is a configuration.
func bareLoop(b *testing.B, encrypted *tls.Config) {
	const total, call = 64 << 20, 1 << 20
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer ln.Close()
	from, to := transporttest.NewRoom(b, "", total).Bytes, transporttest.NewRoom(b, "", total).Bytes
	transporttest.Paint(from, 1)
	transporttest.Paint(to, 2)
	out, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		b.Fatal(err)
	}
	in, err := ln.Accept()
	if err != nil {
		b.Fatal(err)
	}
	if encrypted != nil {
		out, in = tls.Client(out, encrypted), tls.Server(in, encrypted)
	}
	defer out.Close()
	defer in.Close()
	b.SetBytes(total)
	b.ResetTimer()
	var tasks sync.WaitGroup
	tasks.Go(func() {
		for range b.N {
			for at := 0; at < total; at += call {
				if _, err := out.Write(from[at : at+call]); err != nil {
					b.Error(err)
					return
				}
			}
		}
	})
	for range b.N {
		if _, err := io.ReadFull(in, to); err != nil {
			b.Error(err)
			break
		}
	}
	tasks.Wait()
}

// BenchmarkPlainCopy copies the same ranges within one process.
func BenchmarkPlainCopy(b *testing.B) {
	for _, s := range writeShapes {
		b.Run(s.title, func(b *testing.B) {
			from, to := transporttest.NewRoom(b, "", 2*s.size*s.count).Bytes, transporttest.NewRoom(b, "", 2*s.size*s.count).Bytes
			transporttest.Paint(from, 1)
			transporttest.Paint(to, 2)
			b.SetBytes(int64(s.size * s.count))
			for b.Loop() {
				for i := range s.count {
					at := 2 * i * s.size
					copy(to[at:at+s.size], from[at:at+s.size])
				}
			}
		})
	}
}
