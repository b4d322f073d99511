package protocol

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
)

// The bytes of docs/formats/client.md: length, type, flags, 0, index, iteration,
// all little-endian, then the payload.
func TestBytes(t *testing.T) {
	m := Message{Kind: KindCall, Index: 0x0102, Iteration: 3, Payload: []byte("{}")}
	want := []byte{2, 0, 0, 0, 5, 0, 0, 0, 2, 1, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, '{', '}'}
	if got := m.Append(nil); !bytes.Equal(got, want) {
		t.Errorf("% x, want % x", got, want)
	}
	r := NewReader(bytes.NewReader(want))
	got, err := r.Next()
	if err != nil || got.Kind != m.Kind || got.Index != m.Index || got.Iteration != m.Iteration || string(got.Payload) != "{}" {
		t.Errorf("read %+v, %v", got, err)
	}
	if _, err := r.Next(); err != io.EOF {
		t.Errorf("after the last: %v", err)
	}
}

func TestRefused(t *testing.T) {
	ready := Message{Kind: KindReady}.Append(nil)
	change := func(at int, v byte) []byte {
		b := bytes.Clone(ready)
		b[at] = v
		return b
	}
	for _, x := range []struct {
		name, want string
		in         []byte
	}{
		{"half a header", "unexpected EOF", ready[:7]},
		{"half a payload", "unexpected EOF", Message{Kind: KindHello, Payload: []byte("{}")}.Append(nil)[:21]},
		{"no such type", "not a message", change(4, 13)},
		{"type 0", "not a message", change(4, 0)},
		{"flags", "not a message", change(5, 1)},
		{"too long", "at most 67108864", change(3, 0xff)},
		{"index", "out of range", change(11, 0xff)},
		{"iteration", "out of range", change(19, 1)},
	} {
		if _, err := NewReader(bytes.NewReader(x.in)).Next(); err == nil || !strings.Contains(err.Error(), x.want) {
			t.Errorf("%s: %v, want %s", x.name, err, x.want)
		}
	}
}

// Whatever comes, messages are read back as they would be written.
func FuzzReader(f *testing.F) {
	f.Add(Message{Kind: KindGoodbye}.Append(nil))
	f.Add(Message{Kind: KindHello, Index: 1, Iteration: 2, Payload: []byte(`{"rank": 1}`)}.Append(nil))
	f.Fuzz(func(t *testing.T, in []byte) {
		r := NewReader(bytes.NewReader(in))
		var out []byte
		for {
			m, err := r.Next()
			if err != nil {
				if err == io.EOF && !bytes.Equal(in, out) {
					t.Errorf("% x was read as % x", in, out)
				}
				if !bytes.HasPrefix(in, out) || errors.Is(err, io.ErrNoProgress) {
					t.Errorf("% x was read as % x", in, out)
				}
				return
			}
			out = m.Append(out)
		}
	})
}
