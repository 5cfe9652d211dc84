package gateway_test

import (
	"fmt"
	"net"
	"os"
	"strings"
	"testing"

	"pdrouter/internal/gateway"
)

// TestSlowAdministratorHoldsUpNobody has a body that does not come to its end while another administrator drains.
func TestSlowAdministratorHoldsUpNobody(t *testing.T) {
	one := gateway.NewFakeServing(t, "one", "127.0.0.1:0")
	a := administer(t, fmt.Sprintf("{name: m, engines: [{name: one, url: %q}]}", one.URL), "")
	a.until("it listens", a.lists("one"))
	token, err := os.ReadFile(a.tokens["engines"])
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("tcp", strings.TrimPrefix(a.admin, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "POST /admin/v1/models/m/engines HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nExpect: 100-continue\r\nContent-Length: 100\r\n\r\n", strings.TrimSpace(string(token)))
	if _, err := conn.Read(make([]byte, 1)); err != nil { // it is asked to go on: its body is waited for
		t.Fatal(err)
	}
	a.must("one is", "drain", "one")
}
