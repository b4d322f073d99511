package deft

// predict is the length of an iteration in the steady state, as the problem has
// it: a lane that computes and waits, at the end of an iteration, for what is
// applied there; links that send in the order of the schedule, each transfer as
// soon as its link is free and its bucket is ready.
func (s *solution) predict(p *problem) float64 {
	const periods, measured = 4, 2
	sends := make([][2][]send, s.Prologue+s.Period) // by iteration and pass
	for _, x := range s.Sends {
		pass := forward
		if x.Backward {
			pass = backward
		}
		sends[x.Iteration][pass] = append(sends[x.Iteration][pass], x)
	}
	applied := make([][]int, len(sends)) // by iteration: generations
	for g, x := range s.Generations {
		if x.Applied < len(sends) {
			applied[x.Applied] = append(applied[x.Applied], g)
		}
	}
	first := s.first()
	last := func(g int) int { // iteration of a generation, also of one behind the log
		n := max(0, g-first) / s.Updates
		return s.Generations[g-n*s.Updates].last() + n*s.Period
	}

	free := make([]float64, len(p.Cost))
	start := make([]float64, s.Prologue+periods*s.Period) // of the backward pass, by iteration
	end := make([]float64, len(s.Generations)+periods*s.Updates)
	now, from := 0.0, 0.0
	for t := range start {
		if t == s.Prologue+(periods-measured)*s.Period {
			from = now
		}
		// The iteration of the log that this one repeats, and how often it has been.
		n := max(0, t-s.Prologue) / s.Period
		at := t - n*s.Period
		start[t] = now + p.Forward
		for pass, from := range [2]float64{now, start[t]} {
			p.take(free, pass, from)
			for _, x := range sends[at][pass] {
				g := x.Generation + n*s.Updates
				free[x.Link] = max(free[x.Link], start[last(g)]+p.Ready[x.Bucket]) + p.Cost[x.Link][x.Bucket]
				end[g] = max(end[g], free[x.Link])
			}
		}
		now = start[t] + p.Backward
		for _, g := range applied[at] {
			now = max(now, end[g+n*s.Updates])
		}
	}
	return (now - from) / float64(measured*s.Period)
}

// take lets the links send, from a time on, what the job itself sends in a pass.
func (p *problem) take(free []float64, pass int, from float64) {
	for l := range p.Taken {
		if t := p.Taken[l][pass]; t > 0 {
			free[l] = max(free[l], from) + t
		}
	}
}
