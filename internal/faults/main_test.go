package main

import (
	"strings"
	"testing"
)

// TestRead reads what go test prints of tests with and without parts.
func TestRead(t *testing.T) {
	rows, err := read(strings.NewReader(`not JSON
{"Action":"run","Package":"pdrouter/router","Test":"TestFault47to62Legs"}
{"Action":"run","Package":"pdrouter/router","Test":"TestFault47to62Legs/51_push,_D_dies"}
{"Action":"output","Package":"pdrouter/router","Test":"TestFault47to62Legs/51_push,_D_dies","Output":"    gateway_test.go:1: counted: 200 completed, retried\n"}
{"Action":"pass","Package":"pdrouter/router","Test":"TestFault47to62Legs/51_push,_D_dies"}
{"Action":"fail","Package":"pdrouter/router","Test":"TestFault47to62Legs"}
{"Action":"pass","Package":"pdrouter/auth","Test":"TestVerifier"}
{"Action":"skip","Package":"pdrouter/auth","Test":"TestFault30NoToken"}
`))
	if err != nil || len(rows) != 2 {
		t.Fatalf("%d rows, %v", len(rows), err)
	}
	if r := rows[0]; r.number != "30" || r.result != "skip" || r.name() != "auth TestFault30NoToken" {
		t.Errorf("first row: %+v", r)
	}
	if r := rows[1]; r.number != "51" || r.result != "pass" || len(r.counted) != 1 || r.counted[0] != "200 completed, retried" {
		t.Errorf("second row: %+v", r)
	}
}
