package batch

import "fmt"

// The fields of the positional forms, by their order since the first release that had them. A shorter event lacks the last ones.
var (
	storedFields = [...]string{
		"type", "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name", "extra_keys", "group_idx",
		"kv_cache_spec_kind",
	}
	removedFields = [...]string{"type", "block_hashes", "medium", "group_idx"}
	typeField     = [...]string{"type"}
)

// one reads one event into d.event. Its kind is 0 if its type is not known.
func (d *Decoder) one(r *reader) error {
	d.event = Event{WholePrefix: true}
	e := &d.event
	keys := reader{} // extra_keys, which are understood after all other fields
	order := typeField[:]
	switch r.peekType() {
	case Stored:
		order = storedFields[:]
	case Removed:
		order = removedFields[:]
	}
	typed := false
	f := r.fields(order)
	for f.next(r) {
		if typed && e.Kind == 0 {
			f.err = r.skip(0)
			continue
		}
		from := r.at
		f.err = d.field(r, e, f.name)
		switch f.name {
		case "type":
			typed = true
		case "extra_keys":
			keys.b = r.b[from:r.at]
		}
	}
	if f.err == nil && e.Kind == Stored && len(keys.b) > 0 {
		if err := d.extraKeys(&keys, e); err != nil {
			return fmt.Errorf("extra_keys: %w", err)
		}
	}
	e.WholePrefix = e.WholePrefix && (!e.numbered || len(e.LoRA) > 0)
	return f.err
}

// field reads one field of an event.
func (d *Decoder) field(r *reader, e *Event, name string) (err error) {
	switch name {
	case "type":
		var s []byte
		s, err = r.text()
		e.Kind = kindOf(s)
	case "block_hashes":
		d.hashes, err = r.hashes(d.hashes[:0])
		e.Hashes = d.hashes
	case "parent_block_hash":
		if r.null() {
			return nil
		}
		e.HasParent = true
		e.Parent, err = r.hash()
	case "token_ids":
		d.tokens, err = r.tokens(d.tokens[:0])
		e.Tokens = d.tokens
	case "block_size":
		e.BlockSize, err = r.count(maxTokens)
	case "medium":
		var s []byte
		s, err = r.textOrNull()
		e.Medium = mediumOf(s)
	case "lora_id":
		e.numbered = r.code() != 0xc0
		return r.skip(0)
	case "lora_name":
		e.LoRA, err = r.textOrNull()
	case "group_idx":
		if r.null() {
			return nil
		}
		e.Group, err = r.count(1 << 16)
	case "kv_cache_spec_kind":
		var s []byte
		s, err = r.textOrNull()
		e.WholePrefix = wholePrefix(s)
	default:
		return r.skip(0)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

func kindOf(s []byte) Kind {
	switch string(s) {
	case "BlockStored":
		return Stored
	case "BlockRemoved":
		return Removed
	case "AllBlocksCleared":
		return Cleared
	}
	return 0
}

func mediumOf(s []byte) Medium {
	switch string(s) {
	case "", "GPU":
		return GPU
	case "CPU":
		return CPU
	}
	return Storage
}

// wholePrefix reports whether blocks of this kind of KV cache are prefixes. Engines that do not say have full attention alone.
func wholePrefix(kind []byte) bool {
	switch string(kind) {
	case "", "full_attention", "mla_attention", "sink_full_attention":
		return true
	}
	return false
}

// extraKeys reads what besides tokens makes each block what it is. For each block that is nothing, or a list of, in this order: the name of
// the adapter, the media in it, the salt of the prompt (first block only), a digest of embeddings. Names and salts are both plain strings, so
// the name is known by the event's own field, and what is left of strings in the first block is the salt.
func (d *Decoder) extraKeys(r *reader, e *Event) error {
	if r.null() {
		return nil
	}
	n, err := r.array(maxBlocks)
	if err != nil {
		return err
	}
	d.extra = d.extra[:0]
	any := false
	for i := range n {
		own := []byte(nil)
		if !r.null() {
			if own, err = e.extraOf(r, i == 0 && !e.HasParent); err != nil {
				return err
			}
		}
		any = any || own != nil
		d.extra = append(d.extra, own)
	}
	if any {
		e.Extra = d.extra
	}
	return nil
}

// extraOf reads the list of one block, takes the salt if it is the first of a prompt, and returns the bytes of the list if it has more than
// name and salt.
func (e *Event) extraOf(r *reader, first bool) (own []byte, err error) {
	n, err := r.array(maxBlocks)
	from, more := r.at, false
	for i := 0; i < n && err == nil; i++ {
		if !r.isText() {
			err = r.skip(0)
			more = true
			continue
		}
		var s []byte
		s, err = r.text()
		switch {
		case i == 0 && e.LoRA != nil && string(s) == string(e.LoRA):
			from = r.at
		case first && e.Salt == nil:
			e.Salt = s
		default:
			more = true
		}
	}
	if err != nil || !more {
		return nil, err
	}
	return r.b[from:r.at], nil
}
