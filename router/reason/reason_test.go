package reason

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"strings"
	"testing"

	"pdrouter/internal/golden"
)

// TestReasonTable: every reason has a row of its own in table, and clients can tell the rows apart.
func TestReasonTable(t *testing.T) {
	f, err := parser.ParseFile(token.NewFileSet(), "reason.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	ast.Inspect(f, func(node ast.Node) bool {
		if spec, ok := node.(*ast.ValueSpec); ok && (len(spec.Values) == 0 || fmt.Sprint(spec.Type) == "Reason") {
			n++
		}
		return true
	})
	if n != len(table) {
		t.Errorf("%d reasons and %d rows", n, len(table))
	}
	seen := map[string]bool{}
	for r, row := range table {
		if Reason(r) == None {
			continue
		}
		key := fmt.Sprint(row.name, row.status)
		if row.name == "" || row.means == "" || row.status != EngineStatus && (row.status < 400 || row.status > 599) || seen[key] {
			t.Errorf("reason %d: %+v", r, row)
		}
		seen[key] = true
	}
}

// TestReasonsAreDocumented: the table of reasons in docs/errors.md is what table says.
func TestReasonsAreDocumented(t *testing.T) {
	const path, from, to = "../../docs/errors.md", "<!-- reasons -->\n", "<!-- end -->"
	page, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, _ := strings.Cut(string(page), from)
	_, tail, ok := strings.Cut(rest, to)
	if !ok {
		t.Fatalf("%s has no table of reasons", path)
	}
	var want strings.Builder
	want.WriteString("| reason | status | retry | meaning |\n| --- | --- | --- | --- |\n")
	for _, row := range table[None+1:] {
		status, retry := fmt.Sprint(row.status), "yes"
		if row.retry == noRetry {
			retry = "no"
		}
		switch row.status {
		case EngineStatus:
			status = "the engine's 4xx"
		case 499:
			retry = ""
		}
		fmt.Fprintf(&want, "| `%s` | %s | %s | %s |\n", row.name, status, retry, row.means)
	}
	golden.Equal(t, path, head+from+want.String()+to+tail)
}
