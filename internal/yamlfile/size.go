package yamlfile

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Size is a number of bytes. In a file it is a number, or a number with one of the units KiB, MiB and GiB, such as "32MiB".
type Size int

var sizeUnits = map[string]Size{"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}

// UnmarshalYAML reads a size.
func (s *Size) UnmarshalYAML(n *yaml.Node) error {
	digits := strings.TrimRight(n.Value, "KMGiB")
	unit, known := sizeUnits[n.Value[len(digits):]]
	v, err := strconv.ParseInt(digits, 0, strconv.IntSize) // as YAML reads an integer
	if n.Kind != yaml.ScalarNode || !known || err != nil || Size(v) > math.MaxInt/unit || Size(v) < math.MinInt/unit {
		return &yaml.TypeError{Errors: []string{fmt.Sprintf("line %d: cannot unmarshal %s into yamlfile.Size", n.Line, n.ShortTag())}}
	}
	*s = Size(v) * unit
	return nil
}

// MarshalYAML returns the size in its largest unit.
func (s Size) MarshalYAML() (any, error) {
	for _, unit := range []string{"GiB", "MiB", "KiB"} {
		if s != 0 && s%sizeUnits[unit] == 0 {
			return fmt.Sprintf("%d%s", s/sizeUnits[unit], unit), nil
		}
	}
	return int(s), nil
}
