package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"pdrouter/policies"
	"pdrouter/router"
)

const editAbout = "Instructions, counted by `valgrind --tool=callgrind`, that a request's body costs between the socket that it comes from and those that it goes to: it is read and checked, the policy chooses a prefill and a decode engine, and both legs' bodies are written (`router.Rehearsal`, which is the router's own code). Beside it encoding/json makes one body of the same: decode to a map, put the hand-off in, encode. A request that is split needs two. memchr looks for one byte and does nothing else.\n\n" +
	"Counted is the slope between two numbers of requests of a driver process (`pdrouter bench edit-driver`, `GOMAXPROCS=1 GOGC=off`), so that its start does not count, nor does anybody's garbage collection. Prompts are English, code, Chinese and emoji with the escapes that clients write, half of them as `\\uXXXX`. **a further byte** is the slope between two sizes of body; from 16 to 220 KB it is to be what it is from 1 to 16 KB.\n"

// editSuite counts what bodies cost.
func editSuite() Suite {
	return Suite{Name: "edit/instructions", Brief: "instructions of the plan and both legs' bodies, by the size of the body", About: editAbout, run: measureEdit}
}

// The contenders of the suite, as the driver is told.
const (
	editRouter = "router"
	editJSON   = "json"
	editScan   = "memchr"
)

// editSizes are the bodies' sizes in bytes.
var editSizes = [...]int{1 << 10, 16 << 10, 220 << 10}

func measureEdit(ctx context.Context, r *Run) error {
	r.report.Settings = fmt.Sprintf("%d counts of each: they differ by little", editRounds)
	if _, err := exec.LookPath("valgrind"); err != nil {
		r.report.Notes = append(r.report.Notes, "Nothing was counted: valgrind is not installed (`apt-get install valgrind`).")
		fmt.Fprintln(r.out, "  left out: valgrind is not installed")
		return nil
	}
	for _, route := range []string{"chat", "completions"} {
		var at [len(editSizes)]Row
		for i, size := range editSizes {
			if name := fmt.Sprintf("%s %d KB", route, size>>10); r.wants(name) {
				var err error
				if at[i], err = r.editRow(ctx, name, route, size); err != nil {
					return err
				}
				r.report.Rows = append(r.report.Rows, at[i])
			}
		}
		if name := route + ", a further byte"; at[0].Done > 0 && at[1].Done > 0 && at[2].Done > 0 {
			r.report.Rows = append(r.report.Rows, furtherByte(name, at))
		}
	}
	return nil
}

// editRounds is how often each is counted.
const editRounds = 2

// editRow counts all contenders for one body.
func (r *Run) editRow(ctx context.Context, name, route string, size int) (Row, error) {
	began := time.Now()
	fmt.Fprintf(r.out, "  %-28s ", name)
	row := Row{Name: name, Unit: "k instr.", Ours: Figure{Of: us}, Beside: []Figure{{Of: "encoding/json"}, {Of: editScan}}}
	for range editRounds {
		for _, c := range []struct {
			kind string
			to   *Figure
		}{{editRouter, &row.Ours}, {editJSON, &row.Beside[0]}, {editScan, &row.Beside[1]}} {
			each, n, err := r.instructions(ctx, c.kind, route, size)
			if err != nil {
				return row, err
			}
			c.to.Rounds = append(c.to.Rounds, each/1000)
			row.Done += n
		}
		fmt.Fprint(r.out, ".")
	}
	fmt.Fprintf(r.out, " %.0f s\n", time.Since(began).Seconds())
	row.sum(Goal{Beside: "encoding/json", Times: 0.1})
	return row, nil
}

// furtherByte is what the body's size costs, from the rows of three sizes.
func furtherByte(name string, at [len(editSizes)]Row) Row {
	slope := func(of func(Row) Figure, from, to int) []float64 {
		out := make([]float64, editRounds)
		for i := range out {
			out[i] = 1000 * (of(at[to]).Rounds[i] - of(at[from]).Rounds[i]) / float64(editSizes[to]-editSizes[from])
		}
		return out
	}
	ours := func(r Row) Figure { return r.Ours }
	beside := func(i int) func(Row) Figure { return func(r Row) Figure { return r.Beside[i] } }
	const small = "from 1 to 16 KB"
	row := Row{Name: name, What: "from 16 to 220 KB", Unit: "instr.", Ours: Figure{Of: us, Rounds: slope(ours, 1, 2)}, Beside: []Figure{
		{Of: small, Rounds: slope(ours, 0, 1)},
		{Of: "encoding/json", Rounds: slope(beside(0), 1, 2)},
		{Of: editScan, Rounds: slope(beside(1), 1, 2)},
	}}
	row.sum(Goal{Beside: small, Times: 1.1}, Goal{Beside: "encoding/json", Times: 0.1})
	return row
}

// instructions returns what one request costs, and over how many that was counted.
func (r *Run) instructions(ctx context.Context, kind, route string, size int) (each float64, n int, err error) {
	n = 20e6 / map[string]int{editRouter: 10e3 + 3*size, editJSON: 100e3 + 60*size, editScan: 100 + size/5}[kind]
	n = max(2, n)
	few, err := r.callgrind(ctx, kind, route, size, n)
	if err != nil {
		return 0, 0, err
	}
	many, err := r.callgrind(ctx, kind, route, size, 3*n)
	return float64(many-few) / float64(2*n), 4 * n, err
}

// callgrind returns the instructions of one run of the driver.
func (r *Run) callgrind(ctx context.Context, kind, route string, size, n int) (int64, error) {
	dir, err := os.MkdirTemp("", "pdrouter-bench-*")
	if err != nil {
		return 0, fmt.Errorf("bench: %w", err)
	}
	defer os.RemoveAll(dir)
	cmd := exec.CommandContext(ctx, "valgrind", "--tool=callgrind", "--callgrind-out-file="+filepath.Join(dir, "out"),
		r.Binary, "bench", "edit-driver", kind, route, strconv.Itoa(size), strconv.Itoa(n))
	cmd.Env = append(os.Environ(), "GOMAXPROCS=1", "GOGC=off", "GODEBUG=asyncpreemptoff=1") // callgrind ends with signals that it does not expect
	said, err := cmd.CombinedOutput()
	if err != nil {
		return 0, fmt.Errorf("bench: valgrind: %w: %s", err, said[max(0, len(said)-400):])
	}
	return collected(string(said))
}

// collected reads the count that callgrind prints at its end.
func collected(said string) (int64, error) {
	for line := range strings.Lines(said) {
		if _, count, ok := strings.Cut(line, "Collected : "); ok {
			return strconv.ParseInt(strings.TrimSpace(count), 10, 64)
		}
	}
	return 0, fmt.Errorf("bench: valgrind has counted nothing: %s", firstLine(said))
}

// EditDriver does to one body n times what is counted: args are router, json or memchr, then chat or completions, the body's size in
// bytes, and n.
func EditDriver(args []string) error {
	if len(args) != 4 {
		return errors.New("bench: edit-driver wants router, json or memchr, then chat or completions, a size and a number")
	}
	size, err := strconv.Atoi(args[2])
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	n, err := strconv.Atoi(args[3])
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	body, err := editBody(args[1], size)
	if err != nil {
		return err
	}
	edit, err := editor(args[0], args[1])
	for ; n > 0 && err == nil; n-- {
		err = edit(body)
	}
	return err
}

// editor is what a contender does to a body.
func editor(kind, route string) (func(body []byte) error, error) {
	switch kind {
	case editRouter:
		rehearsal, err := rehearsal(route)
		if err != nil {
			return nil, err
		}
		return func(body []byte) error {
			_, _, err := rehearsal.Legs(body)
			return err
		}, nil
	case editJSON:
		return func(body []byte) error {
			_, err := jsonRoundTrip(body)
			return err
		}, nil
	case editScan:
		return func(body []byte) error {
			if bytes.IndexByte(body, 0) >= 0 {
				return errors.New("bench: the body has a byte that it does not have")
			}
			return nil
		}, nil
	}
	return nil, fmt.Errorf("bench: %q edits no body", kind)
}

// rehearsal is the router's code for a route, with two engines of each role.
func rehearsal(route string) (*router.Rehearsal, error) {
	engines := func() []policies.Engine {
		return []policies.Engine{{Name: "a", Usable: true}, {Name: "b", Usable: true}}
	}
	path := map[string]string{"chat": "/v1/chat/completions", "completions": "/v1/completions"}[route]
	return router.NewRehearsal(path, policies.Fleet{Prefill: engines(), Decode: engines()})
}

// jsonRoundTrip makes prefill's body as encoding/json has it done.
func jsonRoundTrip(body []byte) ([]byte, error) {
	var m map[string]any
	if err := json.Unmarshal(body, &m); err != nil {
		return nil, err
	}
	m["max_tokens"], m["stream"] = 1, false
	m["kv_transfer_params"] = map[string]any{"do_remote_decode": true, "do_remote_prefill": false, "transfer_id": "00112233445566778899aabbccddeeff"}
	return json.Marshal(m)
}

// The prompt of editBody, as JSON.stringify and as json.dumps write it.
const (
	editRaw     = `You are given a file. Say what is wrong with it, and why.\n\n` + "```go\\n" + `func main() {\n\tfmt.Println(\"hello, 世界\", os.Args[1:])\n}\n` + "```\\n\\n" + `L'équipe a vérifié le résultat à 10 % près – 预填充阶段读取整个提示,然后把键值缓存交给解码阶段。🚀 Thanks!\n`
	editEscaped = `Summarise the text below in three sentences.\r\n\r\nThe caf\u00e9\u2019s owner said: \"Na\u00efve plans cost \u20ac5 more\" \u2014 see C:\\docs\\plan.txt. \u9884\u586b\u5145\u548c\u89e3\u7801\u5206\u5f00\u8fd0\u884c\u3002 \ud83d\ude80 It ends here, and after it comes some more prose without anything special in it.\n`
)

// editBody is a request of exactly size bytes, with a prompt as people write them.
func editBody(route string, size int) ([]byte, error) {
	head := fmt.Sprintf(`{"model":%q,"temperature":0.7,"top_p":0.95,"stream":true,"stream_options":{"include_usage":true},"max_tokens":256,"stop":["\n\n"],`, benchModel)
	tail := `"}`
	switch route {
	case "chat":
		head += `"messages":[{"role":"system","content":"You are a helpful assistant."},{"role":"user","content":"`
		tail = `"}]}`
	case "completions":
		head += `"prompt":"`
	default:
		return nil, fmt.Errorf("bench: no bodies for %q", route)
	}
	room := size - len(head) - len(tail)
	if room < 0 {
		return nil, fmt.Errorf("bench: a body of %s has at least %d bytes", route, len(head)+len(tail))
	}
	text := strings.Repeat(editRaw+editEscaped, room/len(editRaw+editEscaped)+1)[:room]
	whole := strings.LastIndexByte(text, ' ') + 1 // no character and no escape is cut through
	return []byte(head + text[:whole] + strings.Repeat(" ", room-whole) + tail), nil
}
