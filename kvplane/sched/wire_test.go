package sched

import (
	"bytes"
	"encoding/hex"
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vmihailenco/msgpack/v5"

	"pdrouter/kvplane"
	"pdrouter/metadata"
)

// fill sets every field of a value to something that is not zero, lists to two elements.
func fill(v reflect.Value, n *int64) {
	*n++
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i), n)
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		fallthrough
	case reflect.Array:
		for i := range v.Len() {
			fill(v.Index(i), n)
		}
	case reflect.String:
		v.SetString("text " + hex.EncodeToString([]byte{byte(*n)}))
	case reflect.Uint8:
		v.SetUint(uint64(*n%3 + 1)) // also a kind of report and of an order
	case reflect.Uint64:
		v.SetUint(uint64(*n) << 40)
	default:
		v.SetInt(*n)
	}
}

func filled[T any]() T {
	var v T
	var n int64
	fill(reflect.ValueOf(&v).Elem(), &n)
	return v
}

// TestFormsCarryEveryField also fails when a field is added to a type and forgotten in its form.
func TestFormsCarryEveryField(t *testing.T) {
	for _, o := range []Orders{{}, filled[Orders]()} {
		b := o.Marshal()
		got, err := ParseOrders(b)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(got, o); diff != "" {
			t.Errorf("orders differ (-got +want):\n%s", diff)
		}
		if !bytes.Equal(got.Marshal(), b) {
			t.Error("equal orders have different bytes")
		}
	}
	for _, r := range []RankReport{{}, filled[RankReport]()} {
		b := r.Marshal()
		got, err := ParseRankReport(b)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(got, r); diff != "" {
			t.Errorf("reports differ (-got +want):\n%s", diff)
		}
		if !bytes.Equal(got.Marshal(), b) {
			t.Error("equal reports have different bytes")
		}
	}
}

// TestFormsAreStable holds the bytes that other processes and languages read and write.
func TestFormsAreStable(t *testing.T) {
	peer := metadata.Incarnation{Engine: "p", Generation: 7}
	for name, c := range map[string]struct {
		got  []byte
		want string
	}{
		"orders": {Orders{
			Expect:  []kvplane.Expectation{{ID: kvplane.TransferID{1}, Peer: peer, Need: [2]int{16, 300}, Groups: []kvplane.BlockList{{First: 16, Blocks: []int32{5, 900}}}, Wait: 30e9}},
			Abandon: []Abandonment{{ID: kvplane.TransferID{2}, Why: "left"}},
		}.Marshal(), "95" + "03" + "90" +
			"91" + "99" + "c41001000000000000000000000000000000" + "a170" + "07" + "10" + "cd012c" + "91" + "92" + "10" + "92" + "05" + "cd0384" +
			"c41000000000000000000000000000000000" + "c41000000000000000000000000000000000" + "cf00000006fc23ac00" +
			"90" + "91" + "92" + "c41002000000000000000000000000000000" + "a46c656674"},
		"report": {RankReport{Engine: peer, Rank: metadata.Rank{PP: 1, TP: 2}, Seq: 3, Handshakes: 1, Pending: []kvplane.TransferID{{4}},
			Reports: []kvplane.Report{{ID: kvplane.TransferID{1}, Rank: metadata.Rank{PP: 1, TP: 2}, Kind: kvplane.Failed, Order: kvplane.ExpectOrder, Reason: kvplane.LeaseOver, Blocks: 2, K: 1, N: 2}},
		}.Marshal(), "98" + "03" + "a170" + "07" + "93000102" + "03" +
			"91" + "9d" + "c41001000000000000000000000000000000" + "93000102" + "02" + "02" + "05" + "a0" + "90" + "00" + "02" + "00" + "01" + "02" + "90" +
			"01" + "91" + "c41004000000000000000000000000000000"},
	} {
		if got := hex.EncodeToString(c.got); got != c.want {
			t.Errorf("%s:\n got %s\nwant %s", name, got, c.want)
		}
	}
}

func TestFormsAreBounded(t *testing.T) {
	orders, report := filled[Orders]().Marshal(), filled[RankReport]().Marshal()
	queued := func(id int, generation ...byte) []byte {
		b := append([]byte{0x95, 3, 0x91, 0x93, 0xc4, byte(id)}, bytes.Repeat([]byte{1}, id)...)
		return append(append(append(b, 0xa1, 'p'), generation...), 0x90, 0x90, 0x90)
	}
	if _, err := ParseOrders(queued(16, 7)); err != nil {
		t.Fatal(err)
	}
	for name, b := range map[string][]byte{
		"empty": nil, "trailing byte": append(bytes.Clone(orders), 0), "nil": {0xc0}, "a map": {0x85, 1, 1},
		"another version":              append([]byte{0x95, 2}, orders[2:]...),
		"a long list that is not here": {0x95, 3, 0xdd, 0xff, 0xff, 0xff, 0xff},
		"a list that does not fit":     {0x95, 3, 0xdc, 0x10, 0x00, 1, 2, 3},
		"an id of 15 bytes":            queued(15, 7),
		"an id of 17 bytes":            queued(17, 7),
		"a negative generation":        queued(16, 0xff),
		"a generation of nil":          queued(16, 0xc0),
		"a generation of a float":      queued(16, 0xca, 0, 0, 0, 0),
		"no id":                        bytes.Replace(queued(16, 7), bytes.Repeat([]byte{1}, 16), make([]byte, 16), 1),
	} {
		if o, err := ParseOrders(b); err == nil {
			t.Errorf("%s: got %+v; want an error", name, o)
		}
	}
	for i := range orders {
		if o, err := ParseOrders(orders[:i]); err == nil {
			t.Errorf("%d of %d bytes were taken for %+v", i, len(orders), o)
		}
	}
	for i := range report {
		if r, err := ParseRankReport(report[:i]); err == nil {
			t.Errorf("%d of %d bytes were taken for %+v", i, len(report), r)
		}
	}
	if _, err := ParseRankReport(orders); err == nil {
		t.Error("orders were taken for a report")
	}
}

func FuzzOrders(f *testing.F) {
	f.Add(Orders{}.Marshal())
	f.Add(filled[Orders]().Marshal())
	f.Fuzz(func(t *testing.T, b []byte) {
		o, err := ParseOrders(b)
		if err != nil {
			return
		}
		again := o.Marshal()
		second, err := ParseOrders(again)
		if err != nil || !reflect.DeepEqual(second, o) {
			t.Fatalf("a second round trip: %v\n got %+v\nwant %+v", err, second, o)
		}
		var v any // it is msgpack for others, too
		if err := msgpack.Unmarshal(again, &v); err != nil {
			t.Fatal(err)
		}
	})
}

func FuzzRankReport(f *testing.F) {
	f.Add(RankReport{}.Marshal())
	f.Add(filled[RankReport]().Marshal())
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := ParseRankReport(b)
		if err != nil {
			return
		}
		second, err := ParseRankReport(r.Marshal())
		if err != nil || !reflect.DeepEqual(second, r) {
			t.Fatalf("a second round trip: %v\n got %+v\nwant %+v", err, second, r)
		}
		// Whatever it says, an aggregator stands it, and nobody is released by a stranger.
		a := NewAggregator(metadata.Incarnation{Engine: "other"}, []metadata.Rank{{}}, kvplane.Times{})
		a.Order(1, &Orders{Expect: []kvplane.Expectation{{ID: kvplane.TransferID{1}}}})
		var out Outcome
		a.Step(2, []RankReport{r}, &out)
		if r.Engine != a.engine && len(out.Released)+len(out.Failed) > 0 {
			t.Fatalf("outcome %+v", out)
		}
	})
}
