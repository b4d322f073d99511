package kineto

import "encoding/binary"

const (
	blockSize = 1 << 20
	maxPacked = 9 * binary.MaxVarintLen64 // bytes of one event
)

// store keeps events until all are there and their number is known. It packs
// them, each field as the difference from the event before: 10 to 20 bytes
// instead of 40. So the sorted slice is made once, at its size, and neither its
// growth nor the copy into it decides how much memory reading takes.
type store struct {
	n      int
	blocks [][]byte
	last   [9]int64
}

func (s *store) add(e Event) {
	i := len(s.blocks) - 1
	if i < 0 || len(s.blocks[i])+maxPacked > blockSize {
		s.blocks = append(s.blocks, make([]byte, 0, blockSize))
		i++
	}
	fields := [9]int64{
		e.Start, e.Dur, int64(e.Name), int64(e.Corr), int64(e.Seq), int64(e.Extra), int64(e.Row), int64(e.Cat), int64(e.order),
	}
	b := s.blocks[i]
	for k, v := range fields {
		b = binary.AppendVarint(b, v-s.last[k]) // no overflow: times are within maxTime
	}
	s.blocks[i], s.last = b, fields
	s.n++
}

// take gives the events, in the order of add, and empties the store.
func (s *store) take() []Event {
	events := make([]Event, 0, s.n)
	var f [9]int64
	for i, b := range s.blocks {
		for len(b) > 0 {
			for k := range f {
				difference, n := binary.Varint(b)
				f[k] += difference
				b = b[n:]
			}
			events = append(events, Event{
				Start: f[0], Dur: f[1], Name: uint32(f[2]), Corr: uint32(f[3]), Seq: int32(f[4]), Extra: int32(f[5]),
				Row: uint16(f[6]), Cat: Category(f[7]), order: uint32(f[8]),
			})
		}
		s.blocks[i] = nil
	}
	*s = store{}
	return events
}
