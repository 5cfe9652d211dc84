package fleet

import "pdrouter/policies"

// filter leaves those engines in a choice that can serve this request: the one that holds what it is about, even while
// it drains, or those with the adapter that it names.
func (k *Selection) filter(f *policies.Fleet) {
	if k.pin == nil && k.adapter == "" {
		return
	}
	for i, e := range k.m.Prefill {
		f.Prefill[i].Usable = f.Prefill[i].Usable && k.pin == nil && e.has(k.adapter)
	}
	for i, e := range k.m.Decode {
		if k.pin != nil {
			f.Decode[i].Usable = e == k.pin && !e.Down.Load() && !k.excluded.Has(e)
		} else {
			f.Decode[i].Usable = f.Decode[i].Usable && e.has(k.adapter)
		}
	}
}
