package plan

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"weft/internal/fault"
	"weft/job"
)

// Limits are what a user allows of a plan.
type Limits struct {
	MaxDelay      int     // iterations
	MaxStaleness  int     // iterations
	MinUpdateRate float64 // updates an iteration, at most 1
	MaxMemory     int64   // of one worker, bytes, as [MemoryOf] counts; 0: no limit
}

// DefaultLimits admit synchronous plans only.
var DefaultLimits = Limits{MinUpdateRate: 1}

// AnyLimits admit every delay: for plans that are only simulated.
var AnyLimits = Limits{MaxDelay: math.MaxInt, MaxStaleness: math.MaxInt}

// DelayLimits are the limits that follow from a largest delay alone: of none,
// those of synchronous plans.
func DelayLimits(delay int) Limits {
	if delay == 0 {
		return DefaultLimits
	}
	return Limits{MaxDelay: delay, MaxStaleness: min(delay, math.MaxInt-2) + 2, MinUpdateRate: 1.0 / 3}
}

// Report is what [Check] found.
type Report struct {
	Rules []RuleResult `json:"rules"`
	Notes []string     `json:"notes,omitempty"` // true of the plan, and against no rule
}

// RuleResult is the verdict on one rule. Rule 0 is that the plan is well formed
// and made for this job; 1 to 8 are the plan rules of docs/plan.md.
type RuleResult struct {
	Rule  int    `json:"rule"`
	Title string `json:"title"`
	OK    bool   `json:"ok"`
	// Detail is why the rule holds, or why it was not examined; Witness a
	// counter-example, empty if OK.
	Detail  string `json:"detail,omitempty"`
	Witness string `json:"witness,omitempty"`
}

// OK reports whether every rule holds.
func (r Report) OK() bool {
	return !slices.ContainsFunc(r.Rules, func(x RuleResult) bool { return !x.OK })
}

// Err is nil if every rule holds, otherwise the first that does not, with its witness.
func (r Report) Err() error {
	for _, x := range r.Rules {
		if !x.OK {
			return fmt.Errorf("plan rule %d (%s) does not hold: %s", x.Rule, x.Title, x.Witness)
		}
	}
	return nil
}

// String shows the report as text: for each rule a line and a paragraph.
func (r Report) String() string {
	var b strings.Builder
	for _, x := range r.Rules {
		mark, text := "holds", x.Detail
		switch {
		case x.Witness != "":
			mark, text = "BROKEN", x.Witness
		case !x.OK:
			mark = "open"
		}
		fmt.Fprintf(&b, "%d %-6s %s\n", x.Rule, mark, x.Title)
		if text != "" {
			paragraph(&b, "         ", text)
		}
	}
	for _, n := range r.Notes {
		paragraph(&b, "note: ", n)
	}
	return b.String()
}

// rules in the order of their proofs. A rule is examined when those that it
// needs hold.
var rules = []struct {
	title string
	needs []int
	prove func(*checker) (detail string, err error)
}{
	0: {"well formed, and made for this job", nil, (*checker).formed},
	1: {"each gradient is reduced exactly once", []int{0}, (*checker).reducedOnce},
	2: {"no circular wait", []int{0, 1}, (*checker).noCircle},
	3: {"each read of an iteration sees one version", []int{0, 1, 2}, (*checker).oneVersion},
	4: {"no gradient buffer is written in flight", []int{0, 1, 2, 3}, (*checker).enoughBuffers},
	5: {"delay, staleness, update rate and memory are allowed", []int{0, 1, 2}, (*checker).withinLimits},
	6: {"all ranks hold the same plan", []int{0}, (*checker).samePlan},
	7: {"flush is defined and drops no gradient", []int{0, 1, 2}, (*checker).flushes},
	8: {"a global update follows all reductions", []int{0, 1}, (*checker).globalLast},
}

// Check proves or refutes the plan rules for plan p of the valid job j. All
// proofs are static: they hold for every cluster and all op times.
func Check(p *Plan, j *job.Job, l Limits) Report {
	c := &checker{plan: p, whole: j, limits: l}
	var r Report
	for n, rule := range rules {
		x := RuleResult{Rule: n, Title: rule.title}
		if i := slices.IndexFunc(rule.needs, func(k int) bool { return !r.Rules[k].OK }); i >= 0 {
			x.Detail = fmt.Sprintf("not examined, because rule %d does not hold", rule.needs[i])
		} else if detail, err := rule.prove(c); err != nil {
			x.Witness = err.Error()
		} else {
			x.OK, x.Detail = true, detail
		}
		r.Rules = append(r.Rules, x)
	}
	r.Notes = c.notes
	return r
}

// Synchronous reports whether the plan states delay 0 and one update an iteration.
func (p *Plan) Synchronous() bool {
	return p.MaxDelay == 0 && len(p.Generations) == p.Period
}

// slot is a place in a program: once a period it carries a transfer.
type slot struct{ link, index int }

// checker holds what the proofs share. Fields below whole are set by rule 0.
type checker struct {
	plan   *Plan
	whole  *job.Job // as recorded
	limits Limits
	notes  []string

	job      *job.Job // stripped
	device   bool     // it computes on a device
	old      []job.OpID
	renumber []job.OpID
	order    [][]job.OpID // of the stripped job
	sendable [][]job.OpID // by tensor: job.ReadyOps
	compute  *compute     // set by rule 2
}

func (c *checker) at(s slot) *Transfer { return &c.plan.Programs[s.link].Transfers[s.index] }

// slots yields every transfer of the plan with its place.
func (c *checker) slots(yield func(slot, *Transfer) bool) {
	for l := range c.plan.Programs {
		for i := range c.plan.Programs[l].Transfers {
			if !yield(slot{l, i}, &c.plan.Programs[l].Transfers[i]) {
				return
			}
		}
	}
}

// residue is the generation of the period that t carries the like of.
func (c *checker) residue(t *Transfer) int {
	_, r := divide(t.Generation, len(c.plan.Generations))
	return r
}

// formed is rule 0.
func (c *checker) formed() (string, error) {
	p, j := c.plan, c.whole
	if err := p.validate(); err != nil {
		return "", err
	}
	if fp := j.TensorsFingerprint(); p.Tensors != fp {
		return "", fmt.Errorf("the plan is for another job: it was made for tensors %s, job %q has %s", fault.Short(p.Tensors), fault.Short(j.Name), fp)
	}
	usesOps := p.Order != nil
	c.slots(func(_ slot, t *Transfer) bool {
		usesOps = usesOps || slices.ContainsFunc(t.Gates, func(g Gate) bool { return g.Kind == OpDone })
		return !usesOps
	})
	switch fp := j.OpsFingerprint(); {
	case p.Ops == "" && usesOps:
		return "", errors.New("the plan names ops of its job but does not say of which (ops_fingerprint is empty)")
	case p.Ops != "" && p.Ops != fp:
		return "", fmt.Errorf("the plan is for another profile of the job: it was made for ops %s, job %q has %s", fault.Short(p.Ops), fault.Short(j.Name), fp)
	}
	c.job, c.old = j.Strip(p.Copies)
	c.device = c.job.HasDevice()
	c.renumber = renumber(len(j.Ops), c.old)
	c.sendable = c.job.ReadyOps()
	for _, prove := range []func() error{c.formedTensors, c.formedOrder, c.formedTransfers} {
		if err := prove(); err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("tensors %s", p.Tensors), nil
}

// formedTensors: buckets and updates name tensors and elements that there are.
func (c *checker) formedTensors() error {
	p, j := c.plan, c.whole
	for i, b := range p.Buckets {
		for k, s := range b.Slices {
			at := fmt.Sprintf("buckets[%d].slices[%d]", i, k)
			if int(s.Tensor) >= len(j.Tensors) {
				return fmt.Errorf("%s: no tensor %d; the job has %d", at, s.Tensor, len(j.Tensors))
			}
			if t := &j.Tensors[s.Tensor]; s.Offset+s.Length > t.Elements {
				return fmt.Errorf("%s: %s of tensor %s, which has %d", at, elements(s.Offset, s.Offset+s.Length), fault.Short(t.Name), t.Elements)
			}
		}
	}
	for i, u := range p.Updates {
		for k, t := range u.Tensors {
			if int(t) >= len(j.Tensors) {
				return fmt.Errorf("updates[%d].tensors[%d]: no tensor %d; the job has %d", i, k, t, len(j.Tensors))
			}
		}
	}
	return nil
}

// formedTransfers: transfers repeat collectives and await ops that there are.
func (c *checker) formedTransfers() error {
	j, notBefore := c.whole, 0
	for s, t := range c.slots {
		at := fmt.Sprintf("programs[%d].transfers[%d]", s.link, s.index)
		if t.Bucket < 0 {
			if t.Collective >= len(j.Collectives) {
				return fmt.Errorf("%s.collective: no collective %d; the job has %d", at, t.Collective, len(j.Collectives))
			}
			if x := &j.Collectives[t.Collective]; x.Kind != t.Kind.String() {
				return fmt.Errorf("%s.kind: %s repeats collective %q, which is a %s", at, t.Kind, fault.Short(x.Name), x.Kind)
			}
		}
		for k, g := range t.Gates {
			if g.Kind == NotBefore {
				notBefore++
			}
			if g.Kind != OpDone {
				continue
			}
			if int(g.Op) >= len(j.Ops) {
				return fmt.Errorf("%s.gates[%d].op: no op %d; the job has %d", at, k, g.Op, len(j.Ops))
			}
			if c.renumber[g.Op] < 0 {
				return fmt.Errorf("%s.gates[%d].op: op %d %q is the recorded library's own work, which this plan replaces", at, k, g.Op, fault.Short(j.Ops[g.Op].Name))
			}
		}
	}
	if notBefore > 0 {
		c.notes = append(c.notes, times(notBefore, "gate")+" by time (not-before): for simulation only")
	}
	return nil
}

// formedOrder checks that the compute order is a permutation of each lane, and
// translates it to the stripped job.
func (c *checker) formedOrder() error {
	p := c.plan
	if p.Order == nil {
		return nil
	}
	if len(p.Order) != len(c.job.Lanes) {
		return fmt.Errorf("order: %d lanes; the job computes on %d", len(p.Order), len(c.job.Lanes))
	}
	count := make([]int, len(c.job.Lanes))
	for _, o := range c.job.Ops {
		count[o.Lane]++
	}
	c.order = make([][]job.OpID, len(p.Order))
	seen := make([]bool, len(c.job.Ops))
	for l, ids := range p.Order {
		if ids == nil {
			continue
		}
		c.order[l] = []job.OpID{}
		for k, id := range ids {
			at := fmt.Sprintf("order[%d][%d]", l, k)
			if int(id) >= len(c.whole.Ops) {
				return fmt.Errorf("%s: no op %d; the job has %d", at, id, len(c.whole.Ops))
			}
			o := c.renumber[id]
			if o < 0 {
				continue // the recorded library's own, which is gone
			}
			if lane := c.job.Ops[o].Lane; int(lane) != l {
				return fmt.Errorf("%s: op %d %q runs on lane %s, not on %s", at, id, fault.Short(c.job.Ops[o].Name), c.lane(int(lane)), c.lane(l))
			}
			if seen[o] {
				return fmt.Errorf("%s: op %d %q is listed twice", at, id, fault.Short(c.job.Ops[o].Name))
			}
			seen[o] = true
			c.order[l] = append(c.order[l], o)
		}
		if len(c.order[l]) < count[l] {
			o := slices.IndexFunc(c.job.Ops, func(o job.Op) bool { return int(o.Lane) == l })
			for seen[o] || int(c.job.Ops[o].Lane) != l {
				o++
			}
			return fmt.Errorf("order[%d]: op %d %q of lane %s is missing", l, c.old[o], fault.Short(c.job.Ops[o].Name), c.lane(l))
		}
	}
	return nil
}

// withinLimits is rule 5.
func (c *checker) withinLimits() (string, error) {
	p, l := c.plan, c.limits
	delay, staleness := 0, 0
	for i, u := range p.Updates {
		g := p.Generations[u.Generation]
		d := u.Iteration - g.Last()
		s := d + g.Length - 1
		delay, staleness = max(delay, d), max(staleness, s)
		if d > l.MaxDelay {
			return "", fmt.Errorf("update %d applies generation %d (%s) with delay %d; the limit is %d", i, u.Generation, g.iterations(), d, l.MaxDelay)
		}
		if s > l.MaxStaleness {
			return "", fmt.Errorf("update %d applies generation %d (%s) with staleness %d; the limit is %d", i, u.Generation, g.iterations(), s, l.MaxStaleness)
		}
	}
	rate := float64(len(p.Generations)) / float64(p.Period)
	const rounding = 1e-9
	switch {
	case rate < l.MinUpdateRate-rounding:
		return "", fmt.Errorf("%d updates in %d iterations are a rate of %.4g; the limit is %.4g", len(p.Generations), p.Period, rate, l.MinUpdateRate)
	case p.MaxDelay != delay:
		return "", fmt.Errorf("the plan states a largest delay of %d; it is %d", p.MaxDelay, delay)
	case p.MaxStaleness != staleness:
		return "", fmt.Errorf("the plan states a largest staleness of %d; it is %d", p.MaxStaleness, staleness)
	case math.Abs(p.UpdateRate-rate) > rounding:
		return "", fmt.Errorf("the plan states an update rate of %.4g; it is %.4g", p.UpdateRate, rate)
	}
	if l.MaxMemory > 0 {
		if err := MemoryOf(p, c.whole).Within(l.MaxMemory); err != nil {
			return "", err
		}
	}
	kind := "delayed"
	if p.Synchronous() {
		kind = "synchronous"
	}
	return fmt.Sprintf("%s: delay %d, staleness %d, update rate %.4g", kind, delay, staleness, rate), nil
}

// samePlan is rule 6: the digest is what ranks compare.
func (c *checker) samePlan() (string, error) {
	return fmt.Sprintf("every rank compares the digest %s before its first transfer", c.plan.Digest()), nil
}

// globalLast is rule 8.
func (c *checker) globalLast() (string, error) {
	if c.job.Mode != job.Global {
		return "not needed: the job updates each tensor on its own", nil
	}
	first := make([]int, len(c.plan.Generations)) // 1 + the generation's first update
	for i, u := range c.plan.Updates {
		if u.At == AtRead {
			return "", fmt.Errorf("update %d applies generation %d at the read of each tensor, but this job updates only after a value computed from all gradients", i, u.Generation)
		}
		if f := first[u.Generation] - 1; f >= 0 && c.plan.Updates[f].Iteration != u.Iteration {
			return "", fmt.Errorf("generation %d is applied in parts, in iteration %d (update %d) and in iteration %d (update %d), but this job updates only after a value computed from all gradients",
				u.Generation, c.plan.Updates[f].Iteration, f, u.Iteration, i)
		}
		first[u.Generation] = i + 1
	}
	return "every generation is applied at one step, behind all its transfers", nil
}

// iterations names the iterations of a generation, as in messages.
func (g Generation) iterations() string {
	if g.Length == 1 {
		return "iteration " + g.numbers()
	}
	return "iterations " + g.numbers()
}

func (g Generation) numbers() string {
	if g.Length == 1 {
		return fmt.Sprint(g.First)
	}
	return fmt.Sprintf("%d..%d", g.First, g.Last())
}

// place names a slot, as in messages.
func (c *checker) place(s slot) string {
	return fmt.Sprintf("transfer %d of link %s", s.index, fault.Short(c.plan.Programs[s.link].Link))
}

// load names what a slot carries.
func (c *checker) load(s slot) string {
	t := c.at(s)
	if t.Bucket < 0 {
		return fmt.Sprintf("collective %q of iteration %d", fault.Short(c.job.Collectives[t.Collective].Name), t.Iteration)
	}
	return fmt.Sprintf("bucket %d", t.Bucket)
}

// op names an op of the stripped job.
func (c *checker) op(o job.OpID) string {
	return fmt.Sprintf("op %d %q", c.old[o], fault.Short(c.job.Ops[o].Name))
}

// elements names the elements from..to-1 of a tensor.
func elements(from, to int64) string {
	if to == from+1 {
		return fmt.Sprintf("element %d", from)
	}
	return fmt.Sprintf("elements %d..%d", from, to-1)
}
