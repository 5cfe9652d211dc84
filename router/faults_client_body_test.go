package router_test

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"pdrouter/auth"
	"pdrouter/internal/nonblock"
	"pdrouter/internal/routertest"
	"pdrouter/router"
	"pdrouter/router/connector"
	"pdrouter/router/edge"
)

// bodyEngine replaces the pool's decode engine by one that keeps the bodies it gets, and answers with JSON.
func bodyEngine(t *testing.T, s *routertest.Pool) (bodies func() []string) {
	t.Helper()
	var mu sync.Mutex
	var got []string
	srv := s.Cluster.Server(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		raw, _ := io.ReadAll(r.Body)
		if r.Method == http.MethodPost {
			mu.Lock()
			got = append(got, string(raw))
			mu.Unlock()
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"tokens":[1,2,3],"text":"answer"}`)
	}))
	t.Cleanup(srv.Close)
	s.Config.Models[0].Engines[0].URL = srv.URL
	return func() []string {
		mu.Lock()
		defer mu.Unlock()
		return append([]string(nil), got...)
	}
}

const oneForm = "--b\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\ntiny\r\n--b--\r\n"

// emptyLines are more than a reader of forms reads ahead behind the last boundary.
var emptyLines = strings.Repeat("\r\n", 4<<10)

// formRequest is a request whose body is a form with tail behind its last boundary, inside the Content-Length.
func formRequest(path, tail string, head ...string) string {
	return routertest.RawPost(path, oneForm+tail, append([]string{"Host: a", "Content-Type: multipart/form-data; boundary=b",
		fmt.Sprintf("Content-Length: %d", len(oneForm+tail))}, head...)...)
}

// A form's body ends where Content-Length says, whatever stands in it: what looks like a request behind the last boundary is
// none, in one write or late, whatever the path.
func TestFault01FormHidesNoRequest(t *testing.T) {
	s := routertest.NewPool(t, connector.NameNone, 0, 1, nil)
	bodies := bodyEngine(t, s)
	for name, parts := range map[string]router.Parts{"open": {}, "secured": {Clients: routertest.Clients{}}} {
		t.Run(name, func(t *testing.T) {
			g := routertest.Start(t, s.Config, parts)
			for _, path := range []string{routertest.PathCompletions, "/v1/audio/transcriptions", "/nowhere", "/v1/models"} {
				for _, late := range []bool{false, true} {
					t.Run(fmt.Sprintf("%s, late %v", path, late), func(t *testing.T) {
						conn := dial(t, g.Addr)
						whole := formRequest(path, secondRequest)
						cut := len(whole)
						if late {
							cut -= len(secondRequest)
						}
						_, _ = io.WriteString(conn, whole[:cut])
						if late {
							time.Sleep(20 * time.Millisecond)
							_, _ = io.WriteString(conn, whole[cut:])
						}
						_ = conn.(*net.TCPConn).CloseWrite()
						got, _ := io.ReadAll(conn)
						if n := strings.Count(string(got), "HTTP/1.1 "); n != 1 {
							t.Errorf("%d answers to one request:\n%s", n, got)
						}
					})
				}
			}
		})
	}
	for _, b := range bodies() {
		t.Errorf("an engine was sent %q", b)
	}
}

// A proxy that keeps its connections gives every client its own answer, though one of them sends forms with requests inside.
func TestFault01FormBehindProxy(t *testing.T) {
	t.Run("httputil", func(t *testing.T) {
		behindProxy(t, func(g *routertest.Gateway) string {
			to, _ := url.Parse(g.URL)
			proxy := httputil.NewSingleHostReverseProxy(to)
			kept := &http.Transport{MaxConnsPerHost: 1, MaxIdleConnsPerHost: 1}
			proxy.Transport, proxy.ErrorLog = kept, log.New(io.Discard, "", 0)
			front := httptest.NewServer(proxy)
			t.Cleanup(func() { front.Close(); kept.CloseIdleConnections() })
			return front.URL
		})
	})
	t.Run("nginx", func(t *testing.T) {
		nginx, err := exec.LookPath("nginx")
		if err != nil {
			t.Skip("nginx is not installed (Debian: nginx-light)")
		}
		behindProxy(t, func(g *routertest.Gateway) string {
			ln, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			at, dir := ln.Addr().String(), t.TempDir()
			ln.Close()
			conf := fmt.Sprintf(`daemon off; master_process off; pid %[1]s/pid; error_log %[1]s/log;
events {}
http {
	access_log off; client_body_temp_path %[1]s; proxy_temp_path %[1]s; fastcgi_temp_path %[1]s; uwsgi_temp_path %[1]s; scgi_temp_path %[1]s;
	upstream gateway { server %[2]s; keepalive 1; }
	server { listen %[3]s; location / {
		proxy_pass http://gateway; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_request_buffering off;
	} }
}`, dir, g.Addr, at)
			if err := os.WriteFile(dir+"/conf", []byte(conf), 0o600); err != nil {
				t.Fatal(err)
			}
			run := exec.Command(nginx, "-p", dir, "-c", dir+"/conf")
			run.Stderr = os.Stderr
			if err := run.Start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = run.Process.Kill(); _ = run.Wait() })
			routertest.Eventually(t, "nginx listens", func() bool {
				conn, err := net.Dial("tcp", at)
				if err == nil {
					conn.Close()
				}
				return err == nil
			})
			return "http://" + at
		})
	})
}

func behindProxy(t *testing.T, proxy func(g *routertest.Gateway) (url string)) {
	s := routertest.NewPool(t, connector.NameNone, 0, 1, nil)
	bodyEngine(t, s)
	g := routertest.Start(t, s.Config, router.Parts{})
	front := proxy(g)
	client := &http.Client{Transport: &http.Transport{}}
	t.Cleanup(client.CloseIdleConnections)
	for i := range 20 {
		inside := fmt.Sprintf("GET /v1/models/stolen-%d HTTP/1.1\r\nHost: a\r\n\r\n", i)
		attack, err := client.Post(front+"/v1/audio/transcriptions", "multipart/form-data; boundary=b", strings.NewReader(oneForm+emptyLines+inside))
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, attack.Body)
		attack.Body.Close()
		resp, err := client.Get(front + "/v1/models")
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != 200 || !strings.Contains(string(body), `"object":"list"`) {
			t.Fatalf("the client behind attack %d got %d %s", i, resp.StatusCode, body)
		}
	}
}

// A form reaches the engine as its client sent it, and no file is written on the way.
func TestFault01FormStaysAsItIs(t *testing.T) {
	s := routertest.NewPool(t, connector.NameNone, 0, 1, nil)
	bodies := bodyEngine(t, s)
	g := routertest.Start(t, s.Config, router.Parts{})
	t.Setenv("TMPDIR", "/nonexistent") // a temporary file could not be made
	want := "--b\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\ntiny\r\n" +
		"--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"z.wav\"\r\nContent-Type: audio/wav\r\n\r\n" + strings.Repeat("wave", 5<<20) +
		"\r\n--b\r\nContent-Disposition: form-data; name=\"language\"\r\n\r\nen\r\n" +
		"--b\r\nContent-Disposition: form-data; name=\"prompt\"\r\n\r\nfirst\r\n--b--\r\n"
	resp, err := http.Post(g.URL+"/v1/audio/transcriptions", "multipart/form-data; boundary=b", strings.NewReader(want))
	if err != nil {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(resp.Body)
	resp.Body.Close()
	if got := bodies(); resp.StatusCode != 200 || len(got) != 1 || got[0] != want {
		t.Errorf("%d %s; the engine got %d bodies, or another than was sent", resp.StatusCode, body, len(got))
	}
}

// Fields behind a chunked body are no header fields: none of them authenticates, and a line that could be read in two ways
// ends the connection.
func TestFault04Trailers(t *testing.T) {
	s := routertest.NewPool(t, connector.NameNone, 0, 1, nil)
	g := routertest.Start(t, s.Config, router.Parts{Clients: routertest.Clients{}})
	json := "Content-Type: application/json"
	for _, row := range []struct{ name, key, trailer, status string }{
		{"none", "Authorization: Bearer good", "", "200"},
		{"dropped", "Authorization: Bearer good", "X-A: b\r\nX-B: c\r\n", "200"},
		{"credentials", "X-A: b", "Authorization: Bearer good\r\n", "401"},
		{"key", "X-A: b", "X-Api-Key: good\r\n", "401"},
		{"bare line feed", "Authorization: Bearer good", "X-A: b\n", "400"},
		{"bare line feed at the end", "Authorization: Bearer good", "\n", "400"},
		{"folded", "Authorization: Bearer good", "X-A: b\r\n c\r\n", "400"},
		{"no name", "Authorization: Bearer good", ": b\r\n", "400"},
		{"space before the colon", "Authorization: Bearer good", "X-A : b\r\n", "400"},
		{"long", "Authorization: Bearer good", "X-A: " + strings.Repeat("b", 2<<10) + "\r\n", "400"},
		{"many", "Authorization: Bearer good", strings.Repeat("X-A: b\r\n", 40), "400"},
	} {
		t.Run(row.name, func(t *testing.T) {
			status, rest, closed := routertest.RawRequest(t, g.Addr, routertest.RawPost(routertest.PathCompletions, fmt.Sprintf("%x\r\n%s\r\n0\r\n%s\r\n", len(routertest.PlainBody), routertest.PlainBody, row.trailer),
				"Host: a", json, row.key, "Transfer-Encoding: chunked")+strings.Replace(secondRequest, "\r\n\r\n", "\r\nConnection: close\r\nAuthorization: Bearer good\r\n\r\n", 1))
			second := strings.Contains(rest, `"object":"list"`)
			if !strings.Contains(status, " "+row.status+" ") || !closed || second != (row.status == "200") {
				t.Errorf("%s, closed %v\n%s", status, closed, rest)
			}
		})
	}
}

// Chunks whose size, end or extension could be read in two ways end the connection.
func TestFault03Chunks(t *testing.T) {
	s := routertest.NewPool(t, connector.NameNone, 0, 1, nil)
	g := routertest.Start(t, s.Config, router.Parts{})
	for _, row := range []struct{ name, body, status string }{
		{"extension", fmt.Sprintf("%x;a=b\r\n%s\r\n0;c\r\n\r\n", len(routertest.PlainBody), routertest.PlainBody), "200"},
		{"leading zeros, upper case", fmt.Sprintf("000%X\r\n%s\r\n000\r\n\r\n", len(routertest.PlainBody), routertest.PlainBody), "200"},
		{"one byte each", func() (b string) {
			for _, c := range routertest.PlainBody {
				b += fmt.Sprintf("1\r\n%c\r\n", c)
			}
			return b + "0\r\n\r\n"
		}(), "200"},
		{"bare line feed behind the size", fmt.Sprintf("%x\n%s\r\n0\r\n\r\n", len(routertest.PlainBody), routertest.PlainBody), "400"},
		{"bare line feed behind the chunk", fmt.Sprintf("%x\r\n%s\n0\r\n\r\n", len(routertest.PlainBody), routertest.PlainBody), "400"},
		{"bare line feed in an extension", fmt.Sprintf("%x;a\nb\r\n%s\r\n0\r\n\r\n", len(routertest.PlainBody), routertest.PlainBody), "400"},
		{"bare carriage return in an extension", fmt.Sprintf("%x;a\rb\r\n%s\r\n0\r\n\r\n", len(routertest.PlainBody), routertest.PlainBody), "400"},
		{"longer than its size", fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(routertest.PlainBody)-1, routertest.PlainBody), "400"},
		{"shorter than its size", fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(routertest.PlainBody)+1, routertest.PlainBody), "400"},
		{"0x", fmt.Sprintf("0x%x\r\n%s\r\n0\r\n\r\n", len(routertest.PlainBody), routertest.PlainBody), "400"},
		{"sign", fmt.Sprintf("+%x\r\n%s\r\n0\r\n\r\n", len(routertest.PlainBody), routertest.PlainBody), "400"},
		{"space", fmt.Sprintf("%x \r\n%s\r\n0\r\n\r\n", len(routertest.PlainBody), routertest.PlainBody), "400"},
		{"no size", fmt.Sprintf("\r\n%s\r\n0\r\n\r\n", routertest.PlainBody), "400"},
		{"overflow", fmt.Sprintf("10000000000000000%x\r\n%s\r\n0\r\n\r\n", len(routertest.PlainBody), routertest.PlainBody), "400"},
		{"long extension", fmt.Sprintf("%x;%s\r\n%s\r\n0\r\n\r\n", len(routertest.PlainBody), strings.Repeat("a", 4<<10), routertest.PlainBody), "400"},
	} {
		t.Run(row.name, func(t *testing.T) {
			status, rest, closed := routertest.RawRequest(t, g.Addr, routertest.RawPost(routertest.PathCompletions, row.body, "Host: a", "Content-Type: application/json", "Transfer-Encoding: chunked")+
				strings.Replace(secondRequest, "\r\n\r\n", "\r\nConnection: close\r\n\r\n", 1))
			second := strings.Contains(rest, `"object":"list"`)
			if !strings.Contains(status, " "+row.status+" ") || !closed || second != (row.status == "200") {
				t.Errorf("%s, closed %v\n%s", status, closed, rest)
			}
		})
	}
}

// A request line that ends in a bare line feed is refused; empty lines before it are skipped.
func TestFault04RequestLine(t *testing.T) {
	s := routertest.NewPool(t, connector.NameNone, 0, 1, nil)
	g := routertest.Start(t, s.Config, router.Parts{})
	for _, row := range []struct{ name, request, status string }{
		{"bare line feed", "GET /v1/models HTTP/1.1\nHost: a\r\n\r\n", "400"},
		{"bare line feed at the end", "GET /v1/models HTTP/1.1\r\nHost: a\r\n\n", "400"},
		{"bare line feed before", "\nGET /v1/models HTTP/1.1\r\nHost: a\r\n\r\n", "400"},
		{"empty lines before", "\r\n\r\nGET /v1/models HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", "200"},
	} {
		t.Run(row.name, func(t *testing.T) {
			for _, whole := range []bool{true, false} {
				conn := dial(t, g.Addr)
				if whole {
					_, _ = io.WriteString(conn, row.request)
				} else {
					for i := range row.request {
						_, _ = io.WriteString(conn, row.request[i:i+1])
					}
				}
				_, _ = io.WriteString(conn, secondRequest)
				got, _ := io.ReadAll(conn)
				if !strings.HasPrefix(string(got), "HTTP/1.1 "+row.status+" ") || strings.Count(string(got), "HTTP/1.1 ") != 1 {
					t.Errorf("in one write %v:\n%s", whole, got)
				}
			}
		})
	}
}

// Clients that announce large bodies and send none of them cost next to nothing, and others are served beside them.
func TestFault07AnnouncedBodies(t *testing.T) {
	if testing.Short() {
		t.Skip("opens 1,000 connections")
	}
	const many = 1000
	s := routertest.NewPool(t, connector.NameNone, 0, 1, nil)
	s.Config.Timeouts.Read = time.Hour
	length := []string{"Content-Length: 33554432"}
	for _, row := range []struct {
		name, path, sent string
		head             []string
		secured, waits   bool
	}{
		{"no route", "/nowhere", "", length, false, false},
		{"no credentials", routertest.PathCompletions, "", length, true, false},
		{"a type that is not taken", routertest.PathCompletions, "", append(length, "Content-Type: text/plain"), false, false},
		{"length", routertest.PathCompletions, "", append(length, "Content-Type: application/json"), false, true},
		{"length, some bytes", routertest.PathCompletions, `{"model":"tiny",`, append(length, "Content-Type: application/json"), false, true},
		{"chunk", routertest.PathCompletions, "2000000\r\n{", []string{"Transfer-Encoding: chunked", "Content-Type: application/json"}, false, true},
	} {
		t.Run(row.name, func(t *testing.T) {
			parts, key := router.Parts{}, "X-A: b"
			if row.secured {
				parts.Clients, key = routertest.Clients{}, "Authorization: Bearer good"
			}
			g := routertest.Start(t, s.Config, parts)
			honest := func() {
				t.Helper()
				if r := g.Post(routertest.PathCompletions, routertest.PlainBody, strings.Split(key, ": ")...); r.Status != 200 {
					t.Fatalf("an honest client got %d %s", r.Status, r.Body)
				}
			}
			honest()
			before := memoryUsed()
			request := routertest.RawPost(row.path, row.sent, append([]string{"Host: a"}, row.head...)...)
			for range many {
				if _, err := io.WriteString(dial(t, g.Addr), request); err != nil {
					t.Fatal(err)
				}
			}
			honest()
			if row.waits {
				routertest.Eventually(t, "all heads have been read", func() bool {
					return g.Router.Debug().Edge().BodiesOpened() >= many
				})
			}
			if used := memoryUsed() - before; used > 100<<20 {
				t.Errorf("%d connections hold %d MiB", many, used>>20)
			}
			honest()
		})
	}
}

// memoryUsed is what the process has taken of the system for its heap and its stacks, and not given back.
func memoryUsed() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapInuse + m.StackInuse)
}

// Bodies that do not fit into the memory for them are refused, with a hint when to come again; the next one fits when the
// first has been served.
func TestFault07BodyMemory(t *testing.T) {
	s := routertest.NewPool(t, connector.NameNone, 0, 1, nil)
	s.Config.Limits.Body, s.Config.Limits.BodyMemory = 1<<20, 2<<20
	g := routertest.Start(t, s.Config, router.Parts{})
	body := `{"model":"tiny","prompt":"` + strings.Repeat("a", 1000<<10) + `"}`
	first := dial(t, g.Addr)
	_, _ = io.WriteString(first, routertest.RawPost(routertest.PathCompletions, body[:900<<10], "Host: a", "Content-Type: application/json", fmt.Sprintf("Content-Length: %d", len(body))))
	routertest.Eventually(t, "the first body is held", func() bool { return g.Router.Stats().BodyBytes >= 1000<<10 })
	status, rest, closed := routertest.RawRequest(t, g.Addr, routertest.RawPost(routertest.PathCompletions, body, "Host: a", "Content-Type: application/json", fmt.Sprintf("Content-Length: %d", len(body))))
	if !strings.Contains(status, " 503 ") || !closed || !strings.Contains(rest, "Retry-After: 1") || !strings.Contains(rest, "X-Pdrouter-Reason: body_memory") {
		t.Errorf("%s, closed %v\n%s", status, closed, rest)
	}
	if r := g.Post(routertest.PathCompletions, routertest.PlainBody); r.Status != 200 {
		t.Errorf("a small body beside them: %d %s", r.Status, r.Body)
	}
	_, _ = io.WriteString(first, body[900<<10:])
	resp, err := http.ReadResponse(bufio.NewReader(first), nil)
	if err != nil || resp.StatusCode != 200 {
		t.Fatalf("the first: %v, %v", resp, err)
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	routertest.Eventually(t, "nothing is held", func() bool { return g.Router.Stats().BodyBytes == 0 })
	if r := g.Post(routertest.PathCompletions, body); r.Status != 200 {
		t.Errorf("the next: %d %s", r.Status, r.Body)
	}
}

// A client whose request is refused by its head gets the answer though it goes on sending, and its connection ends.
func TestFault07RefusedWhileSending(t *testing.T) {
	s := routertest.NewPool(t, connector.NameNone, 0, 1, nil)
	g := routertest.Start(t, s.Config, router.Parts{Clients: routertest.Clients{}})
	for range 20 {
		conn := dial(t, g.Addr)
		_, _ = io.WriteString(conn, routertest.RawPost(routertest.PathCompletions, "", "Host: a", "Content-Type: application/json", "Content-Length: 500000"))
		_, _ = conn.Write(bytes.Repeat([]byte("a"), 500000)) // which reads nothing meanwhile
		status, err := bufio.NewReader(conn).ReadString('\n')
		if err != nil || !strings.Contains(status, " 401 ") {
			t.Fatalf("%q, %v", status, err)
		}
		if rest, err := io.ReadAll(conn); err != nil || strings.Contains(string(rest), "HTTP/1.1") {
			t.Fatalf("the connection goes on: %q, %v", rest, err)
		}
	}
}

// A refused request whose whole body is here already does not cost its client the connection.
func TestRefusedKeepsConnection(t *testing.T) {
	s := routertest.NewPool(t, connector.NameNone, 0, 1, nil)
	g := routertest.Start(t, s.Config, router.Parts{Clients: routertest.Clients{}})
	status, rest, _ := routertest.RawRequest(t, g.Addr, routertest.RawPost(routertest.PathCompletions, routertest.PlainBody, "Host: a", "Content-Type: application/json", fmt.Sprintf("Content-Length: %d", len(routertest.PlainBody)))+
		strings.Replace(secondRequest, "\r\n\r\n", "\r\nConnection: close\r\nAuthorization: Bearer good\r\n\r\n", 1))
	if !strings.Contains(status, " 401 ") || !strings.Contains(rest, `"object":"list"`) {
		t.Errorf("%s\n%s", status, rest)
	}
}

// Bodies of any size arrive to the byte, in any framing, however they are cut, one behind the other and at once.
func TestBodiesArrive(t *testing.T) {
	s := routertest.NewPool(t, connector.NameNone, 0, 1, nil)
	bodies := bodyEngine(t, s)
	for name, secure := range map[string]bool{"plain": false, "TLS": true} {
		t.Run(name, func(t *testing.T) {
			before := len(bodies())
			var g *routertest.Gateway
			var conn net.Conn
			if secure {
				srv := httptest.NewUnstartedServer(nil)
				srv.StartTLS()
				srv.Close()
				ln, err := net.Listen("tcp", "127.0.0.1:0")
				if err != nil {
					t.Fatal(err)
				}
				g = routertest.StartOn(t, tls.NewListener(ln, srv.TLS), s.Config, router.Parts{}, http.DefaultClient, func(*router.Router) {})
				conn, err = tls.Dial("tcp", g.Addr, &tls.Config{InsecureSkipVerify: true})
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { conn.Close() })
			} else {
				g = routertest.Start(t, s.Config, router.Parts{})
				conn = dial(t, g.Addr)
			}
			random := rand.New(rand.NewPCG(1, 2))
			sizes := []int{40, 41, nonblock.BufSize - 200, nonblock.BufSize, nonblock.BufSize + 1, edge.HeadBytes, 64 << 10, 64<<10 + 1, 300 << 10, 1 << 20}
			for range 60 {
				sizes = append(sizes, 40+random.IntN(1<<random.IntN(18)+1))
			}
			var want []string
			answers := bufio.NewReader(conn)
			var sent strings.Builder
			asked := 0
			for i, size := range sizes {
				body := fmt.Sprintf(`{"model":"tiny","prompt":"%08d`, i)
				body += strings.Repeat("x", max(size-len(body)-2, 0)) + `"}`
				want = append(want, body)
				if random.IntN(2) == 0 {
					sent.WriteString(routertest.RawPost("/tokenize", body, "Host: a", "Content-Type: application/json", fmt.Sprintf("Content-Length: %d", len(body))))
				} else {
					sent.WriteString(routertest.RawPost("/tokenize", "", "Host: a", "Content-Type: application/json", "Transfer-Encoding: chunked"))
					for rest := body; rest != ""; {
						n := 1 + random.IntN(len(rest))
						fmt.Fprintf(&sent, "%x\r\n%s\r\n", n, rest[:n])
						rest = rest[n:]
					}
					sent.WriteString("0\r\n\r\n")
				}
				if asked++; random.IntN(3) == 0 && i < len(sizes)-1 {
					continue // the next one leaves with it
				}
				all := sent.String()
				sent.Reset()
				go func() {
					for all != "" {
						n := 1 + random.IntN(len(all))
						_, _ = io.WriteString(conn, all[:n])
						all = all[n:]
					}
				}()
				for ; asked > 0; asked-- {
					resp, err := http.ReadResponse(answers, nil)
					if err != nil || resp.StatusCode != 200 {
						t.Fatalf("body %d of %d bytes: %v, %v", i, size, resp, err)
					}
					_, _ = io.Copy(io.Discard, resp.Body)
				}
			}
			got := bodies()[before:]
			for i := range want {
				if i >= len(got) || got[i] != want[i] {
					t.Fatalf("body %d of %d bytes came otherwise", i, len(want[i]))
				}
			}
		})
	}
}

// TestFault66ShutdownWaitsForNoSilentTLS has a client that has connected and not even greeted, where the listener speaks TLS.
func TestFault66ShutdownWaitsForNoSilentTLS(t *testing.T) {
	s := routertest.NewPool(t, connector.NameNone, 0, 1, nil)
	s.Config.Timeouts.Drain, s.Config.Timeouts.Read = time.Hour, time.Hour
	srv := httptest.NewUnstartedServer(nil)
	srv.StartTLS()
	srv.Close()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := routertest.StartOn(t, tls.NewListener(ln, srv.TLS), s.Config, router.Parts{}, http.DefaultClient, func(*router.Router) {})
	conn := dial(t, g.Addr)
	greeted, err := tls.Dial("tcp", g.Addr, &tls.Config{InsecureSkipVerify: true}) // by now the silent one is accepted
	if err != nil {
		t.Fatal(err)
	}
	defer greeted.Close()
	stopped := make(chan struct{})
	go func() { g.Stop(); close(stopped) }()
	select {
	case <-stopped:
	case <-time.After(routertest.Patience):
		t.Fatal("a connection that brought nothing holds up the end")
	}
	if n, err := conn.Read(make([]byte, 1)); n != 0 || os.IsTimeout(err) {
		t.Errorf("%d bytes, %v; want the end of the connection", n, err)
	}
}

// A method that no route has is refused as any other, whatever it is called.
func TestFault10UnknownMethod(t *testing.T) {
	s := routertest.NewPool(t, connector.NameNone, 0, 1, nil)
	g := routertest.Start(t, s.Config, router.Parts{})
	for path, want := range map[string]string{"/v1/models": "405", "/nowhere": "404"} {
		status, rest, _ := routertest.RawRequest(t, g.Addr, "BREW "+path+" HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
		_, body, _ := strings.Cut(rest, "\r\n\r\n")
		if routertest.ErrorOf(t, body); !strings.Contains(status, " "+want+" ") {
			t.Errorf("%s: %s\n%s", path, status, rest)
		}
	}
}

// namedClients takes every bearer token for the name of a tenant.
type namedClients struct{}

func (namedClients) Authenticate(authorization string) (auth.Principal, error) {
	name := strings.TrimPrefix(authorization, "Bearer ")
	return auth.Principal{Subject: name, Tenant: name}, nil
}

// One tenant that sends bodies slowly holds half of the memory for them at most: another one is served.
func TestFault07BodyMemoryOfOneTenant(t *testing.T) {
	s := routertest.NewPool(t, connector.NameNone, 0, 1, nil)
	s.Config.Limits.Body, s.Config.Limits.BodyMemory = 1<<20, 4<<20
	g := routertest.Start(t, s.Config, router.Parts{Clients: namedClients{}})
	request := func(tenant, body string) string {
		return routertest.RawPost(routertest.PathCompletions, body, "Host: a", "Content-Type: application/json", "Authorization: Bearer "+tenant, "Content-Length: 1000000")
	}
	var slow []net.Conn
	for range 8 {
		conn := dial(t, g.Addr)
		slow = append(slow, conn)
		go func() { _, _ = io.WriteString(conn, request("slow", strings.Repeat(" ", 999_999))) }()
	}
	routertest.Eventually(t, "the slow tenant holds its share", func() bool { return g.Router.Stats().BodyBytes > 3<<19 })
	body := `{"model":"tiny","prompt":"` + strings.Repeat("a", 900_000) + `"}`
	for range 20 {
		if r := g.Post(routertest.PathCompletions, body, "Authorization", "Bearer other"); r.Status != 200 {
			t.Fatalf("another tenant: %d %s", r.Status, r.Body)
		}
	}
	if r := g.Post(routertest.PathCompletions, body, "Authorization", "Bearer slow"); r.Status != 503 || r.Header.Get("X-Pdrouter-Reason") != "body_memory" {
		t.Errorf("the slow tenant: %d %s", r.Status, r.Body)
	}
	for _, conn := range slow {
		conn.Close()
	}
	g.WaitIdle()
	if r := g.Post(routertest.PathCompletions, body, "Authorization", "Bearer slow"); r.Status != 200 {
		t.Errorf("the slow tenant, later: %d %s", r.Status, r.Body)
	}
	g.WaitIdle()
	if n := g.Router.Debug().Edge().TenantsOfBodies(); n != 0 {
		t.Errorf("%d tenants are remembered", n)
	}
}
