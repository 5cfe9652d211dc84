package embed

import (
	"bytes"
	"cmp"
	"errors"
	"log/slog"
	"net/url"
	"os"
	"time"

	"pdrouter/internal/field"
	"pdrouter/internal/yamlfile"
	"pdrouter/kvplane"
	"pdrouter/kvplane/transport/byname"
	"pdrouter/metadata"
)

// Config is what a handle is opened with. kvplane/capi/pdkv.h describes every key.
type Config struct {
	Kind       string        `yaml:"kind"`
	Engine     string        `yaml:"engine"`
	Generation uint64        `yaml:"generation"`
	Role       metadata.Role `yaml:"role"`
	Rank       Place         `yaml:"rank"`
	Size       Place         `yaml:"size"`
	Times      Times         `yaml:"times"`
	Log        Log           `yaml:"log"`

	Compatibility string        `yaml:"compatibility"`
	HTTP          string        `yaml:"http"`
	Control       Control       `yaml:"control"`
	Gateway       Gateway       `yaml:"gateway"`
	Transport     byname.Config `yaml:"transport"`
	Cache         Cache         `yaml:"cache"`
	SerialStarts  bool          `yaml:"serial_starts"`
}

// The kinds of handles.
const (
	KindRank      = "rank"
	KindScheduler = "scheduler"
)

// Place is a rank, or how many there are.
type Place struct {
	PP int `yaml:"pp"`
	TP int `yaml:"tp"`
}

func (p Place) rank() metadata.Rank { return metadata.Rank{PP: p.PP, TP: p.TP} }

// Times are those of kvplane.
type Times struct {
	Lease    time.Duration `yaml:"lease"`
	Beat     time.Duration `yaml:"beat"`
	Queue    time.Duration `yaml:"queue"`
	Wait     time.Duration `yaml:"wait"`
	Deadline time.Duration `yaml:"deadline"`
	NetDelay time.Duration `yaml:"net_delay"`
	Lost     time.Duration `yaml:"lost"`
	Lookup   time.Duration `yaml:"lookup"`
}

func (t Times) plane() kvplane.Times {
	return kvplane.Times{
		Lease: t.Lease, Beat: t.Beat, Queue: t.Queue, Wait: t.Wait, Deadline: t.Deadline, NetDelay: t.NetDelay, Lost: t.Lost, Lookup: t.Lookup,
	}
}

// Log says what is written where.
type Log struct {
	Level string `yaml:"level"` // default warn
	File  string `yaml:"file"`  // default: standard error
}

// Control is an engine's control routes: a rank names their URL in its record, the scheduler serves them.
type Control struct {
	URL    string   `yaml:"url"`
	Listen string   `yaml:"listen"`
	Keys   []string `yaml:"keys"`
	Issuer string   `yaml:"issuer"` // default pdrouter
}

// Gateway is where records are published and peers are found. A scheduler has RecordKeys alone, which check tickets.
type Gateway struct {
	URL        string        `yaml:"url"`
	TokenFile  string        `yaml:"token_file"`
	SignKey    string        `yaml:"sign_key"`
	RecordKeys []string      `yaml:"record_keys"`
	TTL        time.Duration `yaml:"ttl"` // of the record; default 30s
}

// Cache is the geometry of the KV cache; its quantities are those of metadata.Layout.
type Cache struct {
	BlockTokens int            `yaml:"block_tokens"`
	Physical    int            `yaml:"physical"` // default 1
	Heads       int            `yaml:"heads"`
	HeadBytes   int            `yaml:"head_bytes"`
	Order       metadata.Order `yaml:"order"` // default hnd
	DType       string         `yaml:"dtype"`
	Replicated  bool           `yaml:"replicated"`
	Memory      string         `yaml:"memory"` // default dram
	Groups      []Group        `yaml:"groups"`
}

// Group is one KV-cache group.
type Group struct {
	Layers    []int `yaml:"layers"`
	Window    int   `yaml:"window"`
	Heads     int   `yaml:"heads"`
	HeadBytes int   `yaml:"head_bytes"`
}

// maxConfig bounds a configuration, in bytes.
const maxConfig = 1 << 20

// ParseConfig reads a configuration: the text itself if it begins with '{', else the file of that path.
func ParseConfig(text []byte) (Config, error) {
	name, b := "configuration", text
	if t := bytes.TrimLeft(text, " \t\r\n"); len(t) == 0 || t[0] != '{' {
		if name = string(text); len(text) == 0 || bytes.IndexByte(text, 0) >= 0 {
			return Config{}, wrong(Refused, "embed: the configuration is empty, or its path has a zero byte")
		}
		var err error
		if b, err = os.ReadFile(name); err != nil {
			return Config{}, wrong(Refused, "embed: configuration: %w", err)
		}
	}
	if len(b) > maxConfig {
		return Config{}, wrong(Refused, "embed: configuration of %d bytes; want at most %d", len(b), maxConfig)
	}
	var c Config
	f := yamlfile.Decode(name, b, &c)
	c = c.withDefaults()
	f.Check(c.Validate())
	if err := f.Err(); err != nil {
		return Config{}, wrong(Refused, "embed: %w", err)
	}
	return c, nil
}

func (c Config) withDefaults() Config {
	c.Role = cmp.Or(c.Role, metadata.Both)
	c.Size.PP, c.Size.TP = cmp.Or(c.Size.PP, 1), cmp.Or(c.Size.TP, 1)
	c.Log.Level = cmp.Or(c.Log.Level, "warn")
	c.Control.Issuer = cmp.Or(c.Control.Issuer, "pdrouter")
	c.Transport.Name, c.Transport.Path = cmp.Or(c.Transport.Name, "auto"), cmp.Or(c.Transport.Path, "auto")
	c.Transport.Listen = cmp.Or(c.Transport.Listen, "127.0.0.1:0")
	c.Cache.Physical = cmp.Or(c.Cache.Physical, 1)
	c.Cache.Order = cmp.Or(c.Cache.Order, metadata.HeadsFirst)
	c.Cache.Memory = cmp.Or(c.Cache.Memory, "dram")
	if c.Kind == KindRank && c.Generation == 0 {
		c.Generation = uint64(time.Now().UnixNano())
	}
	return c
}

// Validate reports every mistake at once, each by its key.
func (c Config) Validate() error {
	var errs []error
	want := func(ok bool, path, format string, args ...any) {
		if !ok {
			errs = append(errs, field.Errorf(path, format, args...))
		}
	}
	want(c.Kind == KindRank || c.Kind == KindScheduler, "kind", "is %.40q; want rank or scheduler", c.Kind)
	if err := metadata.ValidName(c.Engine); err != nil {
		errs = append(errs, field.Errorf("engine", "is %.140q; want 1 to %d letters, digits, '.', '_' and '-'", c.Engine, metadata.MaxName))
	}
	want(c.Role == metadata.Prefill || c.Role == metadata.Decode || c.Role == metadata.Both, "role", "is %.40q; want prefill, decode or both", string(c.Role))
	sized := true
	for _, axis := range []struct {
		name    string
		at, all int
	}{{"pp", c.Rank.PP, c.Size.PP}, {"tp", c.Rank.TP, c.Size.TP}} {
		fits := axis.all >= 1 && axis.all <= metadata.MaxRanks
		want(fits, "size."+axis.name, "is %d; want 1 to %d", axis.all, metadata.MaxRanks)
		sized = sized && fits
		want(axis.at >= 0 && axis.at < max(axis.all, 1), "rank."+axis.name, "is %d; want 0 to %d", axis.at, max(axis.all, 1)-1)
	}
	want(!sized || c.Size.PP*c.Size.TP <= metadata.MaxRanks, "size", "is of more than %d ranks", metadata.MaxRanks)
	for _, t := range []struct {
		name string
		d    time.Duration
	}{
		{"lease", c.Times.Lease}, {"beat", c.Times.Beat}, {"queue", c.Times.Queue}, {"wait", c.Times.Wait}, {"deadline", c.Times.Deadline},
		{"net_delay", c.Times.NetDelay}, {"lost", c.Times.Lost}, {"lookup", c.Times.Lookup},
	} {
		want(t.d >= 0, "times."+t.name, "is %v; want 0 or more", t.d)
	}
	var level slog.Level
	want(level.UnmarshalText([]byte(c.Log.Level)) == nil, "log.level", "is %.40q; want debug, info, warn or error", c.Log.Level)
	if c.Kind == KindScheduler {
		g := c.Gateway
		want(g.URL == "" && g.TokenFile == "" && g.SignKey == "" && g.TTL == 0, "gateway", "has more than record_keys; the rest is for ranks, which publish")
		return errors.Join(append(errs, c.Control.validate())...)
	}
	want(c.Compatibility != "" && len(c.Compatibility) <= metadata.MaxText, "compatibility", "has %d bytes; want 1 to %d", len(c.Compatibility), metadata.MaxText)
	for _, u := range []struct{ name, value string }{{"http", c.HTTP}, {"control.url", c.Control.URL}} {
		want(u.value == "" || isURL(u.value), u.name, "is %.200q; want http://host:port or https://host:port", u.value)
	}
	want(c.Control.Listen == "", "control.listen", "is %.200q; the scheduler serves these routes", c.Control.Listen)
	want(isURL(c.Gateway.URL), "gateway.url", "is %.200q; want http://host:port or https://host:port", c.Gateway.URL)
	want(c.Gateway.TokenFile != "", "gateway.token_file", "is missing; the gateway asks for a token")
	want(c.Gateway.TTL >= 0, "gateway.ttl", "is %v; want 0 or more", c.Gateway.TTL)
	want(c.Transport.Name != "tcp" || c.Cache.Memory != "vram", "transport.name", "is tcp, which reaches the host's memory only; cache.memory is vram")
	return errors.Join(append(errs, field.Under("transport", c.Transport.Validate()), c.Cache.validate())...)
}

func isURL(s string) bool {
	u, err := url.Parse(s)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != ""
}

func (c Cache) validate() error {
	var errs []error
	for _, f := range []struct {
		name string
		n    int
	}{{"block_tokens", c.BlockTokens}, {"physical", c.Physical}, {"heads", c.Heads}, {"head_bytes", c.HeadBytes}} {
		if f.n < 1 || f.n > 1<<20 {
			errs = append(errs, field.Errorf("cache."+f.name, "is %d; want 1 to %d", f.n, 1<<20))
		}
	}
	if c.Memory != "dram" && c.Memory != "vram" {
		errs = append(errs, field.Errorf("cache.memory", "is %.40q; want dram or vram", c.Memory))
	}
	if c.Order != metadata.HeadsFirst && c.Order != metadata.TokensFirst {
		errs = append(errs, field.Errorf("cache.order", "is %.40q; want hnd or nhd", string(c.Order)))
	}
	if c.DType == "" || len(c.DType) > metadata.MaxText {
		errs = append(errs, field.Errorf("cache.dtype", "has %d bytes; want 1 to %d", len(c.DType), metadata.MaxText))
	}
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	if err := c.layout(nil).Validate(); err != nil {
		return field.Errorf("cache", "is no layout: %v", err)
	}
	return nil
}

// layout is the cache with these regions.
func (c Cache) layout(regions []metadata.Region) metadata.Layout {
	l := metadata.Layout{
		BlockTokens: c.BlockTokens, Physical: c.Physical, Heads: c.Heads, HeadBytes: c.HeadBytes, Order: c.Order, DType: c.DType,
		Replicated: c.Replicated, Regions: regions, MemoryType: c.Memory,
	}
	for _, g := range c.Groups {
		l.Groups = append(l.Groups, metadata.Group{Window: g.Window, Layers: g.Layers, Heads: g.Heads, HeadBytes: g.HeadBytes})
	}
	return l
}

// logger opens the log. The function that it returns closes it.
func (c Config) logger() (*slog.Logger, func() error, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(c.Log.Level)); err != nil {
		return nil, nil, wrong(Refused, "embed: log.level: %w", err)
	}
	to, end := os.Stderr, func() error { return nil }
	if c.Log.File != "" {
		f, err := os.OpenFile(c.Log.File, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
		if err != nil {
			return nil, nil, wrong(System, "embed: log.file: %w", err)
		}
		to, end = f, f.Close
	}
	return slog.New(slog.NewTextHandler(to, &slog.HandlerOptions{Level: level})).With("engine", c.Engine), end, nil
}
