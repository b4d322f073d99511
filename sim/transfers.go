package sim

import "slices"

// releaseAll counts one gate of each transfer as open. span is the op that
// opened it, for the timeline's arrows.
func (m *machine) releaseAll(refs []ref, i int, span int32) {
	for _, r := range refs {
		if at, ok := m.position(r, i/m.period); ok {
			if span >= 0 {
				m.links[r.link].inst[at].gradOp = span
			}
			m.open(r.link, at)
		}
	}
}

// open counts one gate of the transfer at position at of a link as open.
func (m *machine) open(l int32, at int) {
	x := &m.links[l].inst[at]
	if x.pending--; x.pending == 0 {
		x.ready = m.now
		m.dirty = true
	}
}

// dispatch starts every transfer that program order, gates and windows allow,
// once all else that happens at this time has happened.
func (m *machine) dispatch() {
	m.dirty = false
	for l := range m.links {
		s, p := &m.links[l], &m.program.links[l]
		for s.head < len(s.inst) {
			x := &s.inst[s.head]
			if x.absent {
				x.done = true
				s.head++
				continue
			}
			full := p.window.Transfers > 0 && s.inFlight >= p.window.Transfers || p.window.Bytes > 0 && s.bytes >= p.window.Bytes
			if x.pending > 0 || full {
				break
			}
			t := &p.transfers[s.head%len(p.transfers)]
			x.started = m.now
			s.inFlight++
			s.bytes += t.bytes
			if m.flying++; m.flying == 1 {
				m.clock.set(m.now, m.clock.slow)
				m.sending.until(m.now)
				m.sending.running = 1
			}
			for side := range s.wires {
				if t.sides>>side&1 != 0 {
					x.wires++
					m.enqueue(l, side, int32(s.head))
				}
			}
			s.head++
		}
	}
}

// enqueue puts a transfer behind those on one wire of its link.
func (m *machine) enqueue(l, side int, position int32) {
	w := &m.links[l].wires[side]
	if w.queue = append(w.queue, position); len(w.queue) == 1 {
		m.startWire(l, side)
	}
}

// startWire starts the first of a wire's queue.
func (m *machine) startWire(l, side int) {
	w := &m.links[l].wires[side]
	w.left = m.at(l, w.queue[0]).wire
	m.share(l, side)
}

func (m *machine) at(l int, position int32) *transfer {
	ts := m.program.links[l].transfers
	return &ts[int(position)%len(ts)]
}

// share divides one side of a medium among the links that use it now, in
// proportion to their bandwidth, so that together they never exceed its fastest
// link.
func (m *machine) share(l, side int) {
	var group []int32
	for _, g := range m.media {
		if slices.Contains(g, int32(l)) {
			group = g
		}
	}
	var active, fastest float64
	for _, k := range group {
		fastest = max(fastest, m.program.links[k].bandwidth)
		if len(m.links[k].wires[side].queue) > 0 {
			active += m.program.links[k].bandwidth
		}
	}
	rate := 1.0
	if active > fastest {
		rate = fastest / active
	}
	for _, k := range group {
		w := &m.links[k].wires[side]
		if len(w.queue) == 0 {
			continue
		}
		if k != int32(l) && w.rate == rate {
			continue // its event stands
		}
		if k != int32(l) {
			w.left -= float64((m.now - w.updated) * w.rate)
		}
		w.rate, w.updated = rate, m.now
		m.seq++
		w.token = m.seq
		m.push(event{at: m.now + max(0, w.left/rate), kind: wireDone, a: k, b: int32(side), token: w.token})
	}
}

// finishWire ends the time of a transfer on one wire; on the last of its wires, its
// start-up goes on from there.
func (m *machine) finishWire(l, side int32, token uint64) {
	s := &m.links[l]
	w := &s.wires[side]
	if token != w.token {
		return // the rate changed since
	}
	at := w.queue[0]
	w.queue = w.queue[1:]
	if s.inst[at].wires--; s.inst[at].wires == 0 {
		m.push(event{at: m.now + m.at(int(l), at).alpha, kind: transferDone, a: l, b: at})
	}
	if len(w.queue) > 0 {
		m.startWire(int(l), int(side))
	} else {
		m.share(int(l), int(side))
	}
}

func (m *machine) finishTransfer(l int32, at int) {
	s := &m.links[l]
	x, t := &s.inst[at], m.at(int(l), int32(at))
	x.done = true
	s.inFlight--
	s.bytes -= t.bytes
	m.dirty = true
	if m.flying--; m.flying == 0 {
		m.clock.set(m.now, 1)
		m.sending.until(m.now)
		m.sending.running = 0
	}
	span := m.rec.transfer(l, at, x, t, m.now)
	n := at / len(m.program.links[l].transfers)
	for _, r := range t.onDone {
		if at, ok := m.position(r, n); ok {
			m.open(r.link, at)
		}
	}
	for _, w := range x.waiters {
		it := m.state[w.iteration]
		if it.waits[w.op]--; it.waits[w.op] > 0 {
			continue
		}
		m.rec.arrived(w, span)
		for k := range m.workers {
			if it.pending[k][w.op] == 0 {
				m.beginIfNext(int32(k), w.op, int(w.iteration))
			}
		}
	}
	x.waiters = nil
}

// media lists the groups of links that share a medium; a link that shares
// nothing is a group of its own.
func media(links []link) [][]int32 {
	var out [][]int32
	named := map[string]int{}
	for l := range links {
		at, ok := named[links[l].medium]
		if !ok || links[l].medium == "" {
			at = len(out)
			out = append(out, nil)
			named[links[l].medium] = at
		}
		out[at] = append(out[at], int32(l))
	}
	return out
}
