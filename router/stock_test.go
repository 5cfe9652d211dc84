package router

import (
	"strings"
	"testing"
)

// TestWarmUpGivesBack has decode fail on the second leg of a handshake: what prefill holds is taken after all where that
// is safe, and counted where it is not.
func TestWarmUpGivesBack(t *testing.T) {
	for _, connector := range []string{ConnectorPush, ConnectorPull} {
		for _, row := range []struct {
			do       string
			stranded uint64
		}{{doRefuse, 0}, {doError, 1}, {doReset, 1}} {
			t.Run(connector+" "+row.do, func(t *testing.T) {
				s := newPool(t, connector, 1, 1, map[string][]fault{"decode-0": {{Leg: "decode", Nth: 1, Do: row.do}}})
				if row.do == doReset && connector == ConnectorPush {
					t.Skip("it is sent a second time, and decode takes it")
				}
				g := start(t, s.cfg, Parts{})
				g.warmed()
				g.settled()
				prefill, decode := s.c.held()
				if n := g.r.Stats().Stranded; n != row.stranded || uint64(prefill) != row.stranded || decode != 0 {
					t.Errorf("%d counted as stranded, prefill holds %d and decode %d; want %d, %d and 0", n, prefill, decode, row.stranded, row.stranded)
				}
			})
		}
	}
}

// TestOtherTransferMode: prefill that says that it moves KV in another way than the connector is not used, and decode is
// not asked to take what it holds.
func TestOtherTransferMode(t *testing.T) {
	for _, row := range []struct {
		mode string
		conn connector
		fits bool
	}{{"push", push{}, true}, {"pull", push{}, false}, {"pull", pull{}, true}, {"push", pull{}, false}, {"", push{}, true}, {"", pull{}, true}} {
		kv := `{"remote_engine_id":"e","remote_host":"h","remote_port":1,"tp_size":2,"pp_size":1,"dcp_size":1,"transfer_mode":"` + row.mode + `"}`
		c, ok := parseCoordinates([]byte(kv))
		if !ok || c.Mode != row.mode || c.moves(row.conn) != row.fits {
			t.Errorf("%q for %s: %+v, %v", row.mode, row.conn.name(), c, ok)
		}
	}
}

// TestSideChannelConfig refuses addresses that cannot be.
func TestSideChannelConfig(t *testing.T) {
	config := func(connector, side string) Config {
		return Config{Models: []Model{{Name: "m", Connector: connector, Prefill: []Engine{{Name: "p", URL: "http://p:1"}}, Decode: []Engine{{Name: "d", URL: "http://d:1", SideChannel: side}}}}}
	}
	for _, row := range []struct{ connector, side, want string }{
		{ConnectorPush, "10.0.0.7:5600", ""}, {ConnectorPull, "[::1]:5600", ""}, {ConnectorPush, "", ""},
		{ConnectorPush, "10.0.0.7", "host:port"}, {ConnectorPush, ":5600", "host:port"}, {ConnectorPull, "h:0", "host:port"}, {ConnectorPull, "h:65536", "host:port"},
		{ConnectorKVPlane, "h:5600", "no side channel for connector kvplane"},
	} {
		err := config(row.connector, row.side).Validate()
		if (err == nil) != (row.want == "") || err != nil && (!strings.Contains(err.Error(), row.want) || !strings.Contains(err.Error(), "models[0].decode[0].side_channel")) {
			t.Errorf("%s %q: %v; want %q", row.connector, row.side, err, row.want)
		}
	}
}
