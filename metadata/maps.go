package metadata

// Maps reports whether two ranks, of two engines that are Pairable, exchange KV blocks or word of them: their stages
// have a layer in common, and the slices of the tensor-parallel ranks meet. Any data-parallel ranks may. It is a pure
// function, and symmetric.
func Maps(x, y Record) bool {
	return slicesMeet(x.Rank.TP, x.Size.TP, y.Rank.TP, y.Size.TP) && layersMeet(x.Layout.Regions, y.Layout.Regions)
}

// slicesMeet reports whether two ranks hold heads in common. One size divides the other, and each rank of the smaller size holds the
// heads of neighbouring ranks of the larger.
func slicesMeet(x, ofX, y, ofY int) bool {
	if ofX > ofY {
		x, ofX, y, ofY = y, ofY, x, ofX
	}
	return divides(ofX, ofY) && y/(ofY/ofX) == x
}

// layersMeet: engines that keep their layouts to themselves may share any layer.
func layersMeet(x, y []Region) bool {
	if len(x) == 0 || len(y) == 0 {
		return true
	}
	held := make(map[int]bool, len(x))
	for _, r := range x {
		held[r.Layer] = true
	}
	for _, r := range y {
		if held[r.Layer] {
			return true
		}
	}
	return false
}
