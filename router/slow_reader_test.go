package router_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net/http"
	"testing"
	"time"

	"pdrouter/internal/routertest"
	"pdrouter/router/connector"
)

// TestFault09SlowReader has a client read a large answer that is not streamed, slowly: timeouts.write ends the answer of a client that
// reads nothing for so long, and not of one that goes on to read.
func TestFault09SlowReader(t *testing.T) {
	for _, row := range []struct {
		name  string
		stops bool
	}{{"reads on", false}, {"stops", true}} {
		routertest.RunVirtual(t, row.name, func(t *testing.T) {
			s, parts := routertest.NewPoolIn(t, routertest.NetOf(t), connector.NameNone, 0, 1)
			s.Config.Timeouts.Write = 10 * time.Second
			g := routertest.Start(t, s.Config, parts)
			s.SetFaults(map[string][]routertest.Fault{"decode-0": {{Leg: "alone", Do: routertest.DoBigToken, N: 2 << 20}}})
			conn := g.Dial(t)
			defer conn.Close()
			_, _ = io.WriteString(conn, routertest.RawPost(routertest.PathCompletions, routertest.PlainBody, "Host: a", "Content-Type: application/json",
				fmt.Sprintf("Content-Length: %d", len(routertest.PlainBody))))
			answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil || answer.StatusCode != http.StatusOK || answer.ContentLength < 1<<20 {
				t.Fatalf("%+v, %v; want a large answer", answer, err)
			}
			read := int64(0)
			for err == nil && (!row.stops || read < 1<<19) {
				var n int64
				n, err = io.CopyN(io.Discard, answer.Body, 32<<10)
				read += n
				time.Sleep(time.Second)
			}
			if !row.stops {
				if !errors.Is(err, io.EOF) || read != answer.ContentLength {
					t.Errorf("%d of %d bytes, %v", read, answer.ContentLength, err)
				}
				return
			}
			time.Sleep(2 * s.Config.Timeouts.Write)
			if n, err := io.Copy(io.Discard, answer.Body); !errors.Is(err, io.ErrUnexpectedEOF) || n > routertest.ConnBuffer+4096 {
				t.Errorf("%d more bytes, %v; want the end in the middle", n, err)
			}
		})
	}
}
