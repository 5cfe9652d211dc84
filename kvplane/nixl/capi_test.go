package nixl

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"
)

// TestAgentConfigLayout holds the mirrored struct against the C ABI's offsets (LP64).
func TestAgentConfigLayout(t *testing.T) {
	var c agentConfig
	got := map[string]uintptr{
		"size":           unsafe.Sizeof(c),
		"progressThread": unsafe.Offsetof(c.progressThread),
		"listenThread":   unsafe.Offsetof(c.listenThread),
		"listenPort":     unsafe.Offsetof(c.listenPort),
		"threadSync":     unsafe.Offsetof(c.threadSync),
		"workers":        unsafe.Offsetof(c.workers),
		"progressDelay":  unsafe.Offsetof(c.progressDelay),
		"listenDelay":    unsafe.Offsetof(c.listenDelay),
		"telemetry":      unsafe.Offsetof(c.telemetry),
	}
	want := map[string]uintptr{"size": 40, "progressThread": 0, "listenThread": 1, "listenPort": 4, "threadSync": 8,
		"workers": 12, "progressDelay": 16, "listenDelay": 24, "telemetry": 32}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("agentConfig (-want +got):\n%s", d)
	}
}

// prototype is a C function as its declaration says.
type prototype struct {
	name, text string
	parameters int
}

var (
	spaces     = regexp.MustCompile(`\s+`)
	beforeStar = regexp.MustCompile(`\s*\*\s*`)
	declared   = regexp.MustCompile(`nixl_capi_status_t\s+(nixl_capi_\w+)\s*\(([^)]*)\)`)
)

// prototypes finds the declarations in C text, by name, with their white space made the same.
func prototypes(text string) map[string]prototype {
	out := make(map[string]prototype)
	for _, m := range declared.FindAllStringSubmatch(text, -1) {
		list := strings.TrimSpace(m[2])
		p := prototype{name: m[1], parameters: strings.Count(list, ",") + 1}
		if list == "" || list == "void" {
			p.parameters = 0
		}
		list = beforeStar.ReplaceAllString(spaces.ReplaceAllString(list, " "), " *")
		p.text = m[1] + "(" + list + ")"
		out[p.name] = p
	}
	return out
}

// ownPrototypes returns the prototype in the comment of each field of capi, by field.
func ownPrototypes(t *testing.T) map[string]prototype {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "capi.go", nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	out := make(map[string]prototype)
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.TypeSpec)
		if !ok || spec.Name.Name != "capi" {
			return true
		}
		for _, f := range spec.Type.(*ast.StructType).Fields.List {
			for _, p := range prototypes(f.Doc.Text()) {
				out[f.Names[0].Name] = p
			}
		}
		return false
	})
	return out
}

// TestSymbolsHavePrototypes: every field is resolved, under the name in its comment.
func TestSymbolsHavePrototypes(t *testing.T) {
	own := ownPrototypes(t)
	var c capi
	resolved := make(map[uintptr]string)
	for _, s := range c.symbols() {
		resolved[uintptr(unsafe.Pointer(s.at))-uintptr(unsafe.Pointer(&c))] = s.name
	}
	typ := reflect.TypeFor[capi]()
	for i := range typ.NumField() {
		f := typ.Field(i)
		if got, want := resolved[f.Offset], own[f.Name].name; got != want || want == "" {
			t.Errorf("%s is resolved as %q; its comment says %q", f.Name, got, want)
		}
	}
	if len(resolved) != typ.NumField() {
		t.Errorf("%d symbols for %d fields", len(resolved), typ.NumField())
	}
}

// TestCallsFitPrototypes: every call passes as many arguments as its function takes, and every function is called.
func TestCallsFitPrototypes(t *testing.T) {
	own := ownPrototypes(t)
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	called := make(map[string]bool)
	for _, name := range files {
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || len(call.Args) == 0 {
				return true
			}
			if fun, ok := call.Fun.(*ast.SelectorExpr); !ok || fun.Sel.Name != "call" {
				return true
			}
			field, ok := call.Args[0].(*ast.SelectorExpr)
			if !ok || field.Sel.Name == "free" {
				return true
			}
			called[field.Sel.Name] = true
			p, known := own[field.Sel.Name]
			if got := len(call.Args) - 1; !known || got != p.parameters {
				t.Errorf("%s: %s is called with %d arguments; %s", fset.Position(call.Pos()), field.Sel.Name, got, p.text)
			}
			return true
		})
	}
	for field := range own {
		if !called[field] {
			t.Errorf("%s is resolved and never called", field)
		}
	}
}

// header returns NIXL's C header if this machine has it.
func header(t *testing.T) string {
	t.Helper()
	at := os.Getenv("NIXL_CAPI_HEADER")
	if at == "" {
		at = filepath.Join("..", "..", ".deps", "nixl-header", "wrapper.h")
	}
	text, err := os.ReadFile(at)
	if err != nil {
		t.Skip("SKIPPED: prototypes are not compared with NIXL's header; set NIXL_CAPI_HEADER:", err)
	}
	return regexp.MustCompile(`//[^\n]*|(?s:/\*.*?\*/)`).ReplaceAllString(string(text), " ")
}

// TestPrototypesMatchHeader compares each prototype with the header, type for type.
func TestPrototypesMatchHeader(t *testing.T) {
	theirs := prototypes(header(t))
	if len(theirs) < 90 {
		t.Fatalf("only %d functions found in the header", len(theirs))
	}
	for field, p := range ownPrototypes(t) {
		if d := cmp.Diff(theirs[p.name].text, p.text); d != "" {
			t.Errorf("%s (-header +comment):\n%s", field, d)
		}
	}
}

// TestConstantsMatchHeader compares the numbers of the enumerations with the header.
func TestConstantsMatchHeader(t *testing.T) {
	text := header(t)
	got := make(map[string]string)
	for _, m := range regexp.MustCompile(`(NIXL_CAPI_\w+)\s*=\s*(-?\d+)`).FindAllStringSubmatch(text, -1) {
		got[m[1]] = m[2]
	}
	for name, want := range map[string]int32{
		"NIXL_CAPI_SUCCESS": int32(Success), "NIXL_CAPI_IN_PROG": int32(InProgress),
		"NIXL_CAPI_ERROR_INVALID_PARAM": int32(InvalidParam), "NIXL_CAPI_ERROR_BACKEND": int32(BackendError),
		"NIXL_CAPI_ERROR_INVALID_STATE": int32(InvalidState), "NIXL_CAPI_ERROR_EXCEPTION": int32(Exception),
		"NIXL_CAPI_ERROR_NO_TELEMETRY": int32(NoTelemetry), "NIXL_CAPI_ERROR_NOT_FOUND": int32(NotFound),
		"NIXL_CAPI_MEM_DRAM": int32(DRAM), "NIXL_CAPI_MEM_VRAM": int32(VRAM), "NIXL_CAPI_MEM_BLOCK": int32(Block),
		"NIXL_CAPI_MEM_OBJECT": int32(Object), "NIXL_CAPI_MEM_FILE": int32(File),
		"NIXL_CAPI_XFER_OP_READ": int32(Read), "NIXL_CAPI_XFER_OP_WRITE": int32(Write),
		"NIXL_CAPI_THREAD_SYNC_NONE": int32(SyncNone), "NIXL_CAPI_THREAD_SYNC_STRICT": int32(SyncStrict),
		"NIXL_CAPI_THREAD_SYNC_RW": int32(SyncRW),
	} {
		if got[name] != strconv.Itoa(int(want)) {
			t.Errorf("%s is %s in the header; %d here", name, got[name], want)
		}
	}
}

// TestConfigMatchesHeader compares the mirrored struct's fields with the header's, in order.
func TestConfigMatchesHeader(t *testing.T) {
	text := header(t)
	m := regexp.MustCompile(`(?s)struct nixl_capi_agent_config_s \{(.*?)\}`).FindStringSubmatch(text)
	if m == nil {
		t.Fatal("the header has no nixl_capi_agent_config_s")
	}
	want := []string{"bool", "bool", "int", "nixl_capi_thread_sync_t", "unsigned int", "uint64_t", "uint64_t", "bool"}
	var got []string
	for _, decl := range strings.Split(m[1], ";") {
		if words := strings.Fields(decl); len(words) > 1 {
			got = append(got, strings.Join(words[:len(words)-1], " "))
		}
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("fields (-here +header):\n%s", d)
	}
}

func TestStatusIsNoError(t *testing.T) {
	if err := Success.err("x"); err != nil {
		t.Errorf("success: %v; want nil", err)
	}
	if err := NotFound.err("load_remote_md"); err == nil || err.Error() != "nixl: load_remote_md: not found" {
		t.Errorf("not found: %v", err)
	}
	if got := Status(-77).String(); got != "status -77" {
		t.Errorf("unknown status: %q", got)
	}
}
