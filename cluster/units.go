package cluster

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"weft/internal/fault"
	"weft/internal/near"
)

// unit is a suffix and what one of it is in the quantity's own unit. A table
// lists the units that values are written with first, from large to small.
type unit struct {
	suffix string
	factor float64
}

var (
	bandwidthUnits = []unit{ // bits per second
		{"Tbit", 1e12}, {"Gbit", 1e9}, {"Mbit", 1e6}, {"kbit", 1e3}, {"bit", 1},
		{"TB", 8e12}, {"GB", 8e9}, {"MB", 8e6}, {"kB", 8e3}, {"B", 8},
		{"TiB", 8 << 40}, {"GiB", 8 << 30}, {"MiB", 8 << 20}, {"KiB", 8 << 10},
	}
	timeUnits = []unit{ // microseconds
		{"s", 1e6}, {"ms", 1e3}, {"us", 1}, {"ns", 1e-3}, {"µs", 1},
	}
	sizeUnits = []unit{ // bytes
		{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"B", 1},
		{"TB", 1e12}, {"GB", 1e9}, {"MB", 1e6}, {"kB", 1e3}, {"TiB", 1 << 40},
	}
)

// ParseBandwidth reads a number with a unit: bit, kbit, Mbit, Gbit, Tbit, or B,
// kB, MB, GB, TB (powers of 1000), KiB, MiB, GiB, TiB (powers of 1024), each
// with or without "/s". The result is bits per second.
func ParseBandwidth(s string) (float64, error) {
	return parseQuantity("bandwidth", strings.TrimSuffix(s, "/s"), bandwidthUnits)
}

// ParseLatency reads a time with its unit, ns, us (or µs), ms or s. The result
// is microseconds.
func ParseLatency(s string) (float64, error) { return parseQuantity("time", s, timeUnits) }

// ParseSize reads a size with its unit, B, kB, MB, GB, TB (powers of 1000) or
// KiB, MiB, GiB, TiB (powers of 1024); a number alone is bytes. It must come to
// whole bytes.
func ParseSize(s string) (int64, error) {
	text := s
	if s != "" && strings.Trim(s, "0123456789") == "" {
		text += "B"
	}
	b, err := parseQuantity("size", text, sizeUnits)
	if err != nil {
		return 0, err
	}
	// Reading 67.4 and multiplying by 1e9 round once each: together by a ulp or so.
	whole := math.Round(b)
	if math.Abs(b-whole) > b*0x1p-52 || whole > MaxBytes {
		return 0, fmt.Errorf("size %q: not a whole number of bytes up to 8 PiB", fault.Short(s))
	}
	return int64(whole), nil
}

func parseQuantity(what, s string, units []unit) (float64, error) {
	number := strings.TrimRight(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZµ")
	suffix := s[len(number):]
	known := make([]string, len(units))
	for i, u := range units {
		known[i] = u.suffix
		if u.suffix != suffix {
			continue
		}
		v, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
		switch {
		case err != nil || math.IsNaN(v) || math.IsInf(v*u.factor, 0):
			return 0, fmt.Errorf("%s %q: %q is not a number", what, fault.Short(s), fault.Short(number))
		case v < 0:
			return 0, fmt.Errorf("%s %q: negative", what, fault.Short(s))
		}
		return v * u.factor, nil
	}
	if suffix == "" {
		return 0, fmt.Errorf("%s %q: no unit; known: %v", what, fault.Short(s), known)
	}
	return 0, fmt.Errorf("%s %q: unknown unit %q%s", what, fault.Short(s), fault.Short(suffix), near.Hint(suffix, known))
}

// format writes v with the first unit, none after smallest, of which it is at
// least one and that reads back as exactly v; smallest always does.
func format(v float64, units []unit, smallest string) string {
	for _, u := range units {
		n := strconv.FormatFloat(v/u.factor, 'g', -1, 64)
		back, _ := strconv.ParseFloat(n, 64)
		if u.suffix == smallest || v >= u.factor && !strings.Contains(n, "e") && back*u.factor == v {
			return n + u.suffix
		}
	}
	return "" // not reached: smallest is one of units
}

func formatBandwidth(bits float64) string { return format(bits, bandwidthUnits, "bit") }
func formatTime(us float64) string        { return format(us, timeUnits, "us") }
func formatRate(bytes float64) string     { return format(bytes*8, bandwidthUnits[5:], "B") }
func formatSize(b int64) string           { return format(float64(b), sizeUnits, "B") }

// ParseKind is the inverse of [Kind.String].
func ParseKind(s string) (Kind, error) { return near.Parse[Kind]("transfer kind", s, kindNames) }

// ParseAlgorithm is the inverse of [Algorithm.String].
func ParseAlgorithm(s string) (Algorithm, error) {
	return near.Parse[Algorithm]("algorithm", s, algorithmNames)
}

// MarshalText is the name, so that files of other packages that hold a Kind
// spell it alike.
func (k Kind) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// ParseLink reads a link as flags give it: parts separated by commas, in any
// order. A part with a unit of bandwidth or of time alone is the bandwidth or
// the latency; other parts are key=value with the keys of the cluster file:
//
//	10Gbit,25us
//	name=eth0,10Gbit,25us,algorithm=tree
//
// The bandwidth is required. The latency is 0 if not given, the name "net".
func ParseLink(s string) (Link, error) {
	l := Link{Name: "net"}
	var given []string
	for part := range strings.SplitSeq(s, ",") {
		part = strings.TrimSpace(part)
		key, value, found := strings.Cut(part, "=")
		if !found {
			key, value = "bandwidth", part
			switch _, err := ParseLatency(part); {
			case err == nil:
				key = "latency"
			case part != "" && strings.Trim(part, "0123456789.") == "":
				return Link{}, fmt.Errorf("link %q: %q has no unit; write it as in 10Gbit,25us", fault.Short(s), fault.Short(part))
			}
		}
		if slices.Contains(given, key) {
			return Link{}, fmt.Errorf("link %q: %s given twice", fault.Short(s), fault.Short(key))
		}
		given = append(given, key)
		var err error
		switch key {
		case "name":
			l.Name = value
		case "medium":
			l.Medium = value
		case "in-flight":
			l.InFlight, err = parseCount(value)
		case "algorithm":
			l.Algorithm, err = ParseAlgorithm(value)
		case "latency":
			l.Latency, err = ParseLatency(value)
		case "bandwidth":
			l.Bandwidth, err = ParseBandwidth(value)
		default:
			err = fmt.Errorf("unknown key %q%s", fault.Short(key), near.Hint(key, linkFlags))
		}
		if err != nil {
			return Link{}, fmt.Errorf("link %q: %w", fault.Short(s), err)
		}
	}
	if !slices.Contains(given, "bandwidth") {
		return Link{}, fmt.Errorf("link %q: no bandwidth; write it as in 10Gbit,25us", fault.Short(s))
	}
	if err := l.check("link"); err != nil {
		return Link{}, fault.Locate(err, func(string) (string, bool) { return fmt.Sprintf("link %q", fault.Short(s)), true })
	}
	return l, nil
}

var linkFlags = []string{"name", "bandwidth", "latency", "algorithm", "medium", "in-flight"}
