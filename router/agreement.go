package router

import (
	"errors"
	"strconv"

	"pdrouter/metadata"
)

var errNoRecords = errors.New("no records")

// incarnations names the runs of two engines that publish records.
func (f *fleet) incarnations(p, d *engine) (prefill, decode metadata.Incarnation, ok bool) {
	pr, dr := f.records(p), f.records(d)
	if len(pr) == 0 || len(dr) == 0 {
		return prefill, decode, false
	}
	return pr[0].Incarnation, dr[0].Incarnation, true
}

func (f *fleet) records(e *engine) []metadata.Record {
	if f.published == nil {
		return nil
	}
	records, ok := f.published.Engine(e.name)
	if !ok {
		return nil
	}
	return records
}

// agree says why two engines cannot be paired, nil if they can. The judgement of engines that publish records is kept
// as long as neither publishes anew.
func (f *fleet) agree(c *couple) error {
	if !c.prefill.publishes {
		return c.agreeStock()
	}
	pr, dr := f.records(c.prefill), f.records(c.decode)
	if len(pr) == 0 || len(dr) == 0 {
		return errNoRecords
	}
	seen := edition{&pr[0], &dr[0], len(pr), len(dr)}
	was := c.judged.Load()
	if was != nil && was.edition == seen {
		return was.err
	}
	err := metadata.Pairable(pr, dr)
	if err == nil && pr[0].Connector != c.conn.Traits().Name {
		err = &metadata.Unpairable{Reason: metadata.OtherConnector, Text: "both move KV by " + pr[0].Connector + "; the connector is " + c.conn.Traits().Name}
	}
	c.judged.Store(&judgement{edition: seen, err: err})
	var why *metadata.Unpairable
	if !errors.As(err, &why) || why.Reason == metadata.IncompleteRanks { // those are on their way
		return err
	}
	if was == nil || was.err == nil || was.err.Error() != err.Error() { // every renewal is judged: once is enough to say it
		f.log.Warn("engines cannot be paired", "prefill", c.prefill.name, "decode", c.decode.name, "err", err)
	}
	return err
}

// runsOf names the runs of both engines that would shake hands now, or says why they cannot.
func (f *fleet) runsOf(c *couple) (metadata.Pair, error) {
	if err := f.agree(c); err != nil {
		return metadata.Pair{}, err
	}
	if !c.prefill.publishes {
		return metadata.Pair{Prefill: c.prefill.incarnation(), Decode: c.decode.incarnation()}, nil
	}
	p, d, ok := f.incarnations(c.prefill, c.decode)
	if !ok {
		return metadata.Pair{}, errNoRecords
	}
	return metadata.Pair{Prefill: p, Decode: d}, nil
}

// agreeStock says why two stock engines cannot be paired, nil if nothing is known against it.
func (c *couple) agreeStock() error {
	p, d := c.prefill, c.decode
	if why := p.handing.never(); why != "" {
		return &metadata.Unpairable{Reason: metadata.NoConnector, Text: p.name + why}
	}
	if at := p.coord.Load(); at != nil && !at.Moves(c.conn) {
		return &metadata.Unpairable{Reason: metadata.OtherConnector, Text: p.name + " says that it moves KV by " + at.Mode + "; the connector is " + c.conn.Traits().Name}
	}
	x, y := p.sighting(), d.sighting()
	switch {
	case x.dead():
		return &metadata.Unpairable{Reason: metadata.SideChannelDead, Text: p.name + " does not answer there any more"}
	case y.dead():
		return &metadata.Unpairable{Reason: metadata.SideChannelDead, Text: d.name + " does not answer there any more"}
	case x.compat != "" && y.compat != "" && x.compat != y.compat:
		return &metadata.Unpairable{Reason: metadata.Incompatible, Text: "digests are " + strconv.Quote(x.compat) + " and " + strconv.Quote(y.compat)}
	}
	return nil
}

// doubtful reports whether requests had better go elsewhere than to a pair that has not shaken hands: prefill's side
// channel has not answered, and decode may need it. Whether it does is for the handshake to find out.
func (f *fleet) doubtful(c *couple) bool {
	if s := c.prefill.sighting(); !s.gone() {
		return false
	}
	return !f.handshakes.Ready(metadata.Pair{Prefill: c.prefill.incarnation(), Decode: c.decode.incarnation()})
}
