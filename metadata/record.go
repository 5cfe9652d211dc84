package metadata

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// RecordVersion is the version of the record format that this package writes. Readers refuse any other.
const RecordVersion = 1

// Role says which legs of a request an engine serves.
type Role string

// The roles of an engine.
const (
	Prefill Role = "prefill"
	Decode  Role = "decode"
	Both    Role = "both"
)

// Rank names one rank of an engine by its data-, pipeline- and tensor-parallel index, each from 0.
// As a size it gives the number of ranks along each axis, each at least 1.
type Rank struct {
	DP int `msgpack:"dp" json:"dp"`
	PP int `msgpack:"pp" json:"pp"`
	TP int `msgpack:"tp" json:"tp"`
}

// String returns "dp/pp/tp", the form used in routes and logs.
func (r Rank) String() string {
	return strconv.Itoa(r.DP) + "/" + strconv.Itoa(r.PP) + "/" + strconv.Itoa(r.TP)
}

// ParseRank is the inverse of Rank.String.
func ParseRank(s string) (Rank, error) {
	parts := strings.Split(s, "/")
	if len(parts) != 3 {
		return Rank{}, fmt.Errorf("metadata: rank %q is not dp/pp/tp", s)
	}
	var n [3]int
	for i, p := range parts {
		v, err := strconv.Atoi(p)
		if err != nil || v < 0 || p != strconv.Itoa(v) {
			return Rank{}, fmt.Errorf("metadata: rank %q is not dp/pp/tp", s)
		}
		n[i] = v
	}
	return Rank{DP: n[0], PP: n[1], TP: n[2]}, nil
}

// Incarnation names one run of an engine: its stable name and a generation that grows at every start
// (Unix nanoseconds of the start). Whatever an earlier generation said is void.
type Incarnation struct {
	Engine     string `msgpack:"engine" json:"engine"`
	Generation uint64 `msgpack:"generation" json:"generation"`
}

// ID returns the engine id, new at every start: "name@generation", the generation in hexadecimal.
func (i Incarnation) ID() string { return i.Engine + "@" + strconv.FormatUint(i.Generation, 16) }

// Record is what a peer must know of one rank to exchange KV blocks with it. Each rank publishes its own.
type Record struct {
	Version     int `msgpack:"v" json:"version"`
	Incarnation `msgpack:",inline"`
	Role        Role `msgpack:"role" json:"role"`
	Rank        Rank `msgpack:"rank" json:"rank"`
	Size        Rank `msgpack:"size" json:"size"` // ranks along each axis, each at least 1

	// Connector is "kvplane", "vllm-nixl-push", "vllm-nixl-pull", or "" for an engine that hands nothing off:
	// such a record is valid, the engine serves aggregated.
	Connector string `msgpack:"connector" json:"connector"`
	// ConnectorVersion is of the protocol that the connector's agents speak with each other: different ones are not pairable.
	// "" is not told, as by stock engines, whose Compatibility covers it.
	ConnectorVersion string `msgpack:"connector_version,omitempty" json:"connector_version,omitempty"`
	// Compatibility is a digest of all that two engines must share (model, dtype, heads, layers, mode). Equal or not pairable.
	Compatibility string `msgpack:"compat" json:"compatibility"`

	Agent     string `msgpack:"agent" json:"agent"`         // name of the rank's agent; contains the generation
	Transport string `msgpack:"transport" json:"transport"` // "nixl", "tcp"
	Blob      []byte `msgpack:"blob" json:"blob"`           // what the transport's peers must load, opaque; at most 64 KiB
	Doorbell  string `msgpack:"doorbell" json:"doorbell"`   // host:port that wakes the agent's owner; "" if it needs none
	HTTP      string `msgpack:"http" json:"http"`           // base URL of the engine's OpenAI routes
	Control   string `msgpack:"control" json:"control"`     // base URL of the engine's control routes
	Side      string `msgpack:"side" json:"side"`           // host:port of stock vLLM's side channel; else ""
	EngineID  string `msgpack:"engine_id" json:"engine_id"` // the id the engine gives itself; stock vLLM's UUID, else Incarnation.ID
	Layout    Layout `msgpack:"layout" json:"layout"`

	// Process is the process that the agent lives in, so that another one on the same host can tell whether it is
	// dead. The zero value is unknown.
	Process Process `msgpack:"process,omitempty" json:"process,omitzero"`

	// Key is the X25519 public key of this run of the agent, 32 bytes: what two agents say to each other is
	// authenticated by a secret that only the holders of their private keys can compute. Empty: it has none.
	Key []byte `msgpack:"key,omitempty" json:"key,omitempty"`

	Published time.Time `msgpack:"published" json:"published_at"`
	Expires   time.Time `msgpack:"expires" json:"expires_at"`

	// What vouches for the record. It is not part of what is signed.
	KeyID     string `msgpack:"-" json:"kid"` // which key made Signature
	Signature []byte `msgpack:"-" json:"signature"`
	// Binding is a gateway's signed word that the key of KeyID may vouch for this rank. Empty: Signature is a gateway's.
	Binding []byte `msgpack:"-" json:"binding,omitempty"`
	// Payload is the record as it was signed; nil if it was not. Code that changes a field must clear it, else Marshal refuses.
	Payload []byte `msgpack:"-" json:"-"`
}

// CheckAgent returns nil if the agent's name is that of this rank of this run of its engine, "engine@generation/rank". Peers know agents by
// their names alone, so a record must not name another engine's.
func (r Record) CheckAgent() error {
	if own := r.ID() + "/" + r.Rank.String(); r.Agent != own {
		return fmt.Errorf("metadata: agent is %.300q; want %q", r.Agent, own)
	}
	return nil
}

// SameProtocol reports whether nothing is known against two records' agents understanding each other: their protocols have
// one version, or that of one is not told.
func (r Record) SameProtocol(o Record) bool {
	return r.ConnectorVersion == o.ConnectorVersion || r.ConnectorVersion == "" || o.ConnectorVersion == ""
}

// Process names one process of one boot of one host. No other process ever has the same four values.
type Process struct {
	Boot       string `msgpack:"boot" json:"boot"`             // the kernel's id of this boot
	Namespaces string `msgpack:"namespaces" json:"namespaces"` // in which PID and Started count: those of process ids and of time
	PID        int    `msgpack:"pid" json:"pid"`
	Started    uint64 `msgpack:"started" json:"started"` // in clock ticks since the boot
}

// IsZero says that the process is unknown.
func (p Process) IsZero() bool { return p == Process{} }

// Layout describes how one rank keeps its KV cache. The quantities are those of docs/kvplane.md.
type Layout struct {
	BlockTokens int      `msgpack:"block_tokens" json:"block_tokens"`                   // L: tokens of a logical block
	Physical    int      `msgpack:"physical" json:"physical_per_logical"`               // ρ: kernel blocks in a logical block, at least 1
	Heads       int      `msgpack:"heads" json:"heads"`                                 // H: KV heads of the whole model; 1 for MLA
	HeadBytes   int      `msgpack:"head_bytes" json:"head_bytes"`                       // c: bytes of one head of one token of one plane
	Order       Order    `msgpack:"order" json:"order"`                                 // what is outermost inside a block
	DType       string   `msgpack:"dtype" json:"dtype"`                                 // element type, for the compatibility check
	Replicated  bool     `msgpack:"replicated" json:"replicated"`                       // MLA: every TP rank holds all of it
	Regions     []Region `msgpack:"regions" json:"regions"`                             // registered memory, one per layer of this rank's stage
	Notes       string   `msgpack:"notes,omitempty" json:"notes,omitempty"`             // for people
	Groups      []Group  `msgpack:"groups,omitempty" json:"groups,omitempty"`           // KV-cache groups; none means one group of full attention
	MemoryType  string   `msgpack:"memory_type,omitempty" json:"memory_type,omitempty"` // "dram" (default), "vram"
}

// Order says how heads and tokens are nested in a block.
type Order string

// The orders of a KV block.
const (
	HeadsFirst  Order = "hnd" // head stride b·c, token stride c
	TokensFirst Order = "nhd" // token stride h·c, head stride c
)

// Group is one KV-cache group with its own block table.
type Group struct {
	Window    int   `msgpack:"window,omitempty" json:"window,omitempty"`         // tokens of a sliding window; 0 is full attention
	Layers    []int `msgpack:"layers" json:"layers"`                             // global layer indices
	Heads     int   `msgpack:"heads,omitempty" json:"heads,omitempty"`           // H in this group; 0 is Layout.Heads
	HeadBytes int   `msgpack:"head_bytes,omitempty" json:"head_bytes,omitempty"` // c in this group; 0 is Layout.HeadBytes
}

// Region is a registered stretch of KV memory that holds one layer. Addresses and strides are in bytes,
// in the owner's address space.
type Region struct {
	Layer       int    `msgpack:"layer" json:"layer"`               // global layer index
	Planes      int    `msgpack:"planes" json:"planes"`             // 2 if K and V lie in one region, 1 if apart
	Base        uint64 `msgpack:"base" json:"base"`                 // address of block 0
	Length      uint64 `msgpack:"length" json:"length"`             // bytes registered from Base
	Blocks      int    `msgpack:"blocks" json:"blocks"`             // kernel blocks
	BlockStride uint64 `msgpack:"block_stride" json:"block_stride"` // S
	PlaneStride uint64 `msgpack:"plane_stride" json:"plane_stride"` // s_k
	HeadStride  uint64 `msgpack:"head_stride" json:"head_stride"`   // s_h
	TokenStride uint64 `msgpack:"token_stride" json:"token_stride"` // s_t
	Device      int    `msgpack:"device" json:"device"`
}
