//go:build !race

package nonblock

const raced = false
