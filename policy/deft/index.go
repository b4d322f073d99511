package deft

// index finds states by the times at which the first links are free.
type index struct {
	links int
	stamp int32
	small []struct{ stamp, at int32 } // one link
	large map[uint64]int32
}

func (x *index) reset(links int) {
	x.links = links
	x.stamp++
	if links <= 1 {
		if x.small == nil {
			x.small = make([]struct{ stamp, at int32 }, 1<<unitBits)
		}
		return
	}
	if x.large == nil {
		x.large = map[uint64]int32{}
	}
	clear(x.large)
}

// find gives the place of a state like s; if there is none it notes s at place next.
func (x *index) find(s *state, next int) (place int, ok bool) {
	var key uint64
	for l := range x.links {
		key = key<<unitBits | uint64(s.x[l])
	}
	if x.links <= 1 {
		e := &x.small[key]
		if e.stamp == x.stamp {
			return int(e.at), true
		}
		e.stamp, e.at = x.stamp, int32(next)
		return next, false
	}
	at, ok := x.large[key]
	if !ok {
		x.large[key] = int32(next)
		return next, false
	}
	return int(at), ok
}
