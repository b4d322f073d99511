package kineto

import (
	"bytes"
	"errors"
	"iter"
	"math/bits"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"
)

// The decoder has checked every event before it comes here. So these functions
// walk JSON that is known to be valid, without copying, several times faster
// than a general decoder. On text that is not valid they stop early.

// members gives the names, without quotes, and the values of a JSON object.
func members(object []byte) iter.Seq2[[]byte, []byte] {
	return func(yield func(name, value []byte) bool) {
		rest := inside(object)
		for {
			var name, value []byte
			if name, rest = next(rest); len(rest) == 0 {
				return
			}
			if value, rest = next(rest); len(value) == 0 || !yield(unquote(name), value) {
				return
			}
		}
	}
}

// elements gives the values of a JSON array.
func elements(array []byte) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		var value []byte
		for rest := inside(array); ; {
			if value, rest = next(rest); len(value) == 0 || !yield(value) {
				return
			}
		}
	}
}

// inside is what follows the opening bracket.
func inside(v []byte) []byte {
	if len(v) == 0 {
		return nil
	}
	return v[1:]
}

// next cuts the first value, past white space, commas and colons. It gives none
// at the end of the array or object.
func next(b []byte) (value, rest []byte) {
	i := 0
	for i < len(b) && (b[i] <= ' ' || b[i] == ',' || b[i] == ':') {
		i++
	}
	start := i
	switch {
	case i == len(b) || b[i] == ']' || b[i] == '}':
		return nil, nil
	case b[i] == '"':
		i = stringEnd(b, i)
	case b[i] == '[' || b[i] == '{':
		i = nestedEnd(b, i)
	default:
		for i < len(b) && b[i] > ' ' && b[i] != ',' && b[i] != ']' && b[i] != '}' {
			i++
		}
	}
	return b[start:i], b[i:]
}

// stringEnd is the position after the string that starts at i.
func stringEnd(b []byte, i int) int {
	for i++; i < len(b); i++ {
		n := bytes.IndexByte(b[i:], '"')
		if n < 0 {
			break
		}
		escapes := 0
		for k := i + n - 1; k >= i && b[k] == '\\'; k-- {
			escapes++
		}
		if i += n; escapes%2 == 0 {
			return i + 1
		}
	}
	return len(b)
}

// nestedEnd is the position after the array or object that starts at i.
func nestedEnd(b []byte, i int) int {
	for depth := 0; i < len(b); i++ {
		switch b[i] {
		case '"':
			i = stringEnd(b, i) - 1
		case '[', '{':
			depth++
		case ']', '}':
			if depth--; depth == 0 {
				return i + 1
			}
		}
	}
	return len(b)
}

// unquote gives the text of a string or number, and nothing for other values.
func unquote(v []byte) []byte {
	switch {
	case len(v) == 0:
		return nil
	case v[0] == '-' || '0' <= v[0] && v[0] <= '9':
		return v
	case v[0] != '"' || len(v) == 1:
		return nil
	case bytes.IndexByte(v, '\\') < 0:
		return v[1 : len(v)-1]
	}
	s, _ := jsontext.AppendUnquote(nil, v) // invalid UTF-8 is repaired
	return s
}

// integer is the value of a number without fraction, or of a string that holds
// one; 0 and false for anything else.
func integer(v []byte) (int64, bool) {
	n, err := strconv.ParseInt(string(unquote(v)), 10, 64)
	if err != nil {
		return 0, false
	}
	return n, true
}

var (
	errNotNumber = errors.New("is not a number")
	errAbsurd    = errors.New("is more than a hundred years of microseconds")
)

// maxTime bounds starts and durations, in nanoseconds, so that an end does not
// overflow: 146 years.
const maxTime = 1<<62 - 1

// nanoseconds converts a JSON number of microseconds, exactly: half a nanosecond
// and more is rounded away from zero. Floating point would lose the nanoseconds
// of times since 1970.
func nanoseconds(v []byte) (int64, error) {
	negative := len(v) > 0 && v[0] == '-'
	if negative {
		v = v[1:]
	}
	if len(v) == 0 || v[0] < '0' || v[0] > '9' {
		return 0, errNotNumber
	}
	// The number is mantissa * 10^shift nanoseconds. Digits that do not fit are
	// cut off, which no longer matters for the result.
	var mantissa uint64
	shift, point := 3, false
	for ; len(v) > 0; v = v[1:] {
		c := v[0]
		if c == '.' {
			point = true
			continue
		}
		if c == 'e' || c == 'E' {
			exponent, err := strconv.ParseInt(string(v[1:]), 10, 32)
			if err != nil && !errors.Is(err, strconv.ErrRange) {
				return 0, errNotNumber
			}
			shift += int(exponent)
			break
		}
		if c < '0' || c > '9' {
			return 0, errNotNumber
		}
		switch fits := mantissa < 1e18; {
		case fits:
			mantissa = mantissa*10 + uint64(c-'0')
			if point {
				shift--
			}
		case !point:
			shift++
		}
	}
	for ; shift > 0 && mantissa > 0; shift-- {
		over, product := bits.Mul64(mantissa, 10)
		if mantissa = product; over > 0 || mantissa > maxTime {
			return 0, errAbsurd
		}
	}
	for ; shift < -1 && mantissa > 0; shift++ {
		mantissa /= 10
	}
	if shift == -1 {
		mantissa = (mantissa + 5) / 10
	}
	if mantissa > maxTime {
		return 0, errAbsurd
	}
	if negative {
		return -int64(mantissa), nil
	}
	return int64(mantissa), nil
}
