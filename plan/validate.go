package plan

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"weft/cluster"
	"weft/internal/fault"
)

// Limits of a plan. They keep the work that a hostile file can ask for bounded.
const (
	maxPeriod  = 1 << 16 // iterations
	maxHorizon = 1 << 20 // iterations or generations that a plan looks back or ahead
	maxSlices  = 1 << 24 // over all transfers of a period; no list of a file is longer
	maxBuffers = 1 << 16
	maxTime    = 1e15 // microseconds: 31 years
)

func faultf(path, format string, args ...any) error {
	return fault.New("plan", path, format, args...)
}

// validate reports the first thing that is wrong with the plan taken alone:
// after it, references within the plan are in range. [Check] looks at the plan
// together with its job.
func (p *Plan) validate() error {
	if p.Period < 1 || p.Period > maxPeriod {
		return faultf("period", "%d iterations; need 1 to %d", p.Period, maxPeriod)
	}
	if n := len(p.Generations); n == 0 || n > maxPeriod {
		return faultf("generations", "%d generations; need 1 to %d", n, maxPeriod)
	}
	for i, g := range p.Generations {
		if g.First < 0 || g.First >= maxPeriod || g.Length < 1 || g.Length > maxPeriod {
			return faultf(fmt.Sprintf("generations[%d]", i), "%d iterations from %d; need at least 1 from 0, at most %d", g.Length, g.First, maxPeriod)
		}
	}
	for l, ids := range p.Order {
		if i := slices.IndexFunc(ids, func(o int32) bool { return o < 0 }); i >= 0 {
			return faultf(fmt.Sprintf("order[%d][%d]", l, i), "negative op %d", ids[i])
		}
	}
	for i, b := range p.Buckets {
		if len(b.Slices) == 0 {
			return faultf(fmt.Sprintf("buckets[%d].slices", i), "empty")
		}
		for k, s := range b.Slices {
			if s.Tensor < 0 || s.Offset < 0 || s.Length < 1 || s.Offset > math.MaxInt64-s.Length {
				return faultf(fmt.Sprintf("buckets[%d].slices[%d]", i, k), "%d elements from %d of tensor %d; need at least 1 from 0 of tensor 0 or later", s.Length, s.Offset, s.Tensor)
			}
		}
	}
	if err := cmp.Or(p.validatePrograms(), p.validateUpdates()); err != nil {
		return err
	}
	switch {
	case p.Buffers < 1 || p.Buffers > maxBuffers:
		return faultf("buffers", "%d; need 1 to %d", p.Buffers, maxBuffers)
	case p.MaxDelay < 0:
		return faultf("max_delay", "negative: %d", p.MaxDelay)
	case p.MaxStaleness < 0:
		return faultf("max_staleness", "negative: %d", p.MaxStaleness)
	case !(p.UpdateRate > 0 && p.UpdateRate <= 1):
		return faultf("update_rate", "%g; need more than 0, at most 1", p.UpdateRate)
	}
	return nil
}

func (p *Plan) validatePrograms() error {
	links, total := map[string]int{}, 0
	for l := range p.Programs {
		x, path := &p.Programs[l], fmt.Sprintf("programs[%d]", l)
		if x.Link == "" {
			return faultf(path+".link", "missing")
		}
		if first, ok := links[x.Link]; ok {
			return faultf(path+".link", "link %q has a program already: programs[%d]", fault.Short(x.Link), first)
		}
		links[x.Link] = l
		if x.Window.Transfers < 0 || x.Window.Bytes < 0 {
			return faultf(path+".window", "negative: %d transfers, %d bytes", x.Window.Transfers, x.Window.Bytes)
		}
		for i := range x.Transfers {
			if err := p.validateTransfer(l, i); err != nil {
				return err
			}
			if b := x.Transfers[i].Bucket; b >= 0 {
				total += len(p.Buckets[b].Slices)
			}
			if total > maxSlices {
				return faultf(fmt.Sprintf("%s.transfers[%d]", path, i), "the transfers up to here carry more than %d slices", maxSlices)
			}
		}
	}
	return nil
}

func (p *Plan) validateUpdates() error {
	for i, u := range p.Updates {
		path := fmt.Sprintf("updates[%d]", i)
		if u.Generation < 0 || u.Generation >= len(p.Generations) {
			return faultf(path+".generation", "no generation %d; the period has %d", u.Generation, len(p.Generations))
		}
		if int(u.At) >= len(pointNames) {
			return faultf(path+".at", "unknown point %d", u.At)
		}
		if !closeBy(u.Iteration) {
			return faultf(path+".iteration", "%d is more than %d iterations away", u.Iteration, maxHorizon)
		}
		if u.Tensors != nil && len(u.Tensors) == 0 {
			return faultf(path+".tensors", "empty; leave it out for all tensors")
		}
		seen := make(map[int32]bool, len(u.Tensors))
		for k, t := range u.Tensors {
			if t < 0 || seen[t] {
				return faultf(fmt.Sprintf("%s.tensors[%d]", path, k), "tensor %d is negative or listed twice", t)
			}
			seen[t] = true
		}
	}
	return nil
}

func closeBy(n int) bool { return -maxHorizon <= n && n <= maxHorizon }

func (p *Plan) validateTransfer(l, i int) error {
	t, path := &p.Programs[l].Transfers[i], fmt.Sprintf("programs[%d].transfers[%d]", l, i)
	switch {
	case t.Kind > cluster.Pull:
		return faultf(path+".kind", "unknown kind %d", t.Kind)
	case t.Bucket < -1 || t.Bucket >= len(p.Buckets):
		return faultf(path+".bucket", "no bucket %d; the plan has %d", t.Bucket, len(p.Buckets))
	case t.Generation >= len(p.Generations):
		return faultf(path+".generation", "no generation %d; the period has %d", t.Generation, len(p.Generations))
	case !closeBy(t.Generation):
		return faultf(path+".generation", "%d is more than %d generations back", t.Generation, maxHorizon)
	case t.Bucket == -1 && t.Generation != 0:
		return faultf(path+".generation", "a collective of the job has none")
	case t.Collective < 0:
		return faultf(path+".collective", "negative: %d", t.Collective)
	case !closeBy(t.Iteration):
		return faultf(path+".iteration", "%d is more than %d iterations away", t.Iteration, maxHorizon)
	}
	for k, g := range t.Gates {
		if err := p.validateGate(l, i, g, fmt.Sprintf("%s.gates[%d]", path, k)); err != nil {
			return err
		}
	}
	return nil
}

func (p *Plan) validateGate(l, i int, g Gate, path string) error {
	t := &p.Programs[l].Transfers[i]
	if int(g.Kind) >= len(gateNames) {
		return faultf(path+".kind", "unknown kind %d", g.Kind)
	}
	switch {
	case (g.Kind == GradientReady || g.Kind == NotBefore) && t.Bucket < 0:
		return faultf(path, "a collective of the job waits for no gradient")
	case g.Kind == OpDone && g.Op < 0:
		return faultf(path+".op", "negative: %d", g.Op)
	case !closeBy(g.Iteration):
		return faultf(path+".iteration", "%d is more than %d iterations away", g.Iteration, maxHorizon)
	case g.Kind == NotBefore && !(g.Time >= 0 && g.Time <= maxTime):
		return faultf(path+".time", "%g us; need 0 to %g us", g.Time, maxTime)
	case g.Kind != TransferDone:
		return nil
	case g.Link < 0 || g.Link >= len(p.Programs):
		return faultf(path+".link", "no program %d; the plan has %d", g.Link, len(p.Programs))
	case g.Transfer < 0 || g.Transfer >= len(p.Programs[g.Link].Transfers):
		return faultf(path+".transfer", "no transfer %d; link %s has %d", g.Transfer, fault.Short(p.Programs[g.Link].Link), len(p.Programs[g.Link].Transfers))
	}
	if other := p.Programs[g.Link].Transfers[g.Transfer].Generation; (other-t.Generation)%len(p.Generations) != 0 {
		return faultf(path, "waits for a transfer of generation %d, but is of generation %d: a period has %d", other, t.Generation, len(p.Generations))
	}
	return nil
}
