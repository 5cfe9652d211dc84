package fleet

import (
	"errors"
	"strconv"

	"pdrouter/metadata"
)

// ErrNoRecords says that an engine that publishes records has published none.
var ErrNoRecords = errors.New("no records")

// Incarnations names the runs of two engines that publish records.
func (f *Fleet) Incarnations(p, d *Engine) (prefill, decode metadata.Incarnation, ok bool) {
	pr, dr := f.Records(p), f.Records(d)
	if len(pr) == 0 || len(dr) == 0 {
		return prefill, decode, false
	}
	return pr[0].Incarnation, dr[0].Incarnation, true
}

// Records returns what an engine has published; nil if that is nothing.
func (f *Fleet) Records(e *Engine) []metadata.Record {
	if f.published == nil {
		return nil
	}
	records, ok := f.published.Engine(e.Name)
	if !ok {
		return nil
	}
	return records
}

// Compatible says why two engines cannot be paired, nil if they can. The result for engines that publish records is kept
// until one of them publishes new records.
func (f *Fleet) Compatible(c *Pair) error {
	if c.revisions != nil {
		return c.revisions
	}
	if !c.Prefill.Publishes {
		return c.CompatibleStock()
	}
	pr, dr := f.Records(c.Prefill), f.Records(c.Decode)
	if len(pr) == 0 || len(dr) == 0 {
		return ErrNoRecords
	}
	seen := recordsKey{&pr[0], &dr[0], len(pr), len(dr)}
	was := c.compatibility.Load()
	if was != nil && was.of == seen {
		return was.err
	}
	err := metadata.Pairable(pr, dr)
	if err == nil && pr[0].Connector != c.Connector.Traits().Name {
		err = &metadata.Unpairable{Reason: metadata.OtherConnector, Text: "both move KV by " + pr[0].Connector + "; the connector is " + c.Connector.Traits().Name}
	}
	c.compatibility.Store(&compatibility{of: seen, err: err})
	var why *metadata.Unpairable
	if !errors.As(err, &why) || why.Reason == metadata.IncompleteRanks { // those are on their way
		return err
	}
	if was == nil || was.err == nil || was.err.Error() != err.Error() { // each renewal is compared, so log only a new error
		f.log.Warn("engines cannot be paired", "prefill", c.Prefill.Name, "decode", c.Decode.Name, "err", err)
	}
	return err
}

// revisionsFit returns an error if the configuration says that two engines run different weights or versions.
func revisionsFit(p, d *Engine) error {
	x, y := p.Origin.Entry.Revision, d.Origin.Entry.Revision
	if x == y || x == "" || y == "" {
		return nil
	}
	return &metadata.Unpairable{Reason: metadata.OtherRevision, Text: "revisions are " + strconv.Quote(x) + " and " + strconv.Quote(y)}
}

// ExcludeRevisions excludes those decode engines that, as the configuration says, run other weights or another version than an engine that has
// given a part of an answer: they would not have given the rest of it.
func (m *Model) ExcludeRevisions(t Excluded, of *Engine) Excluded {
	for _, e := range m.Decode {
		if revisionsFit(of, e) != nil && !t.Has(e) {
			t = t.Add(e, 0)
		}
	}
	return t
}

// Runs names the runs of both engines that would shake hands now, or says why they cannot.
func (f *Fleet) Runs(c *Pair) (metadata.Pair, error) {
	if err := f.Compatible(c); err != nil {
		return metadata.Pair{}, err
	}
	if !c.Prefill.Publishes {
		return StockRuns(c.Prefill, c.Decode), nil
	}
	p, d, ok := f.Incarnations(c.Prefill, c.Decode)
	if !ok {
		return metadata.Pair{}, ErrNoRecords
	}
	return metadata.Pair{Prefill: p, Decode: d}, nil
}

// CompatibleStock says why two stock engines cannot be paired, nil if nothing is known against it.
func (c *Pair) CompatibleStock() error {
	p, d := c.Prefill, c.Decode
	if why := p.HandOff.never(); why != "" {
		return &metadata.Unpairable{Reason: metadata.NoConnector, Text: p.Name + why}
	}
	if at := p.Endpoint.Load(); at != nil && !at.Moves(c.Connector) {
		return &metadata.Unpairable{Reason: metadata.OtherConnector, Text: p.Name + " says that it moves KV by " + at.Mode + "; the connector is " + c.Connector.Traits().Name}
	}
	x, y := p.ChannelReport(), d.ChannelReport()
	switch {
	case x.Dead():
		return &metadata.Unpairable{Reason: metadata.SideChannelDead, Text: p.Name + " does not answer there any more"}
	case y.Dead():
		return &metadata.Unpairable{Reason: metadata.SideChannelDead, Text: d.Name + " does not answer there any more"}
	case x.Compatibility != "" && y.Compatibility != "" && x.Compatibility != y.Compatibility:
		return &metadata.Unpairable{Reason: metadata.Incompatible, Text: "digests are " + strconv.Quote(x.Compatibility) + " and " + strconv.Quote(y.Compatibility)}
	}
	return nil
}

// Doubtful reports whether requests should avoid a pair that has not shaken hands: prefill's side channel has not answered, and decode may
// need it. Only the handshake can show whether it does.
func (f *Fleet) Doubtful(c *Pair) bool {
	s := c.Prefill.ChannelReport()
	return s.Silent() && !f.handshakes.Ready(StockRuns(c.Prefill, c.Decode))
}
