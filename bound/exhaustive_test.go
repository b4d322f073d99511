package bound_test

import (
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"weft/bound"
	"weft/cluster"
	"weft/job"
	"weft/plan"
)

var jobs = flag.Int("jobs", 4, "random jobs of each class in TestExhaustive")

// TestExhaustive runs every schedule of a family on small random jobs: every
// ordered partition of tensors into buckets, of two also with an element of one
// of them apart; every assignment to links; all-reduces, reduce-scatters each with
// its all-gather behind it, or all all-gathers last; one transfer in flight or
// any number; every periodic structure of up to three iterations of generations
// and delays within the limits. None may beat the bound. The log says how often
// the best of them attains it.
func TestExhaustive(t *testing.T) {
	total, most := 0, 0
	for i, x := range []struct {
		name   string
		links  int
		limits plan.Limits
	}{
		{"synchronous, one link", 1, plan.DefaultLimits},
		{"synchronous, two links", 2, plan.DefaultLimits},
		{"delay 1, rate 1, one link", 1, plan.Limits{MaxDelay: 1, MaxStaleness: 1, MinUpdateRate: 1}},
		{"delay 1, rate 1, two links", 2, plan.Limits{MaxDelay: 1, MaxStaleness: 1, MinUpdateRate: 1}},
		{"delay 0, rate 1/2, one link", 1, plan.Limits{MaxStaleness: 1, MinUpdateRate: 1. / 2}},
		{"delay 1, rate 1/3, one link", 1, plan.DelayLimits(1)},
		{"delay 2, staleness 2, one link", 1, plan.Limits{MaxDelay: 2, MaxStaleness: 2}},
		{"delay 1, rate 2/3, two links", 2, plan.Limits{MaxDelay: 1, MaxStaleness: 2, MinUpdateRate: 2. / 3}},
	} {
		r := rand.New(rand.NewPCG(3, uint64(i)))
		var gaps []float64
		attained, schedules := 0, 0
		for range *jobs {
			s := small{job: smallJob(r), links: smallLinks(r, x.links)}
			c := links(s.links...)
			b, err := bound.Within(s.job, c, x.limits)
			if err != nil {
				t.Fatal(err)
			}
			best := math.Inf(1)
			for g := range structures(x.limits) {
				for sends := range s.programs() {
					for _, window := range []int{1, math.MaxInt} {
						time := s.run(g, sends, window, 8)
						if schedules++; time < best { // transfers may fall behind for long, up to the delay
							time = s.run(g, sends, window, 600)
						}
						if time < b.Time-1e-9 {
							t.Fatalf("%s: %v takes %v, below the bound of %v (%s)\nops %+v\ntensors %+v\nlinks %v, window %d, sends %+v",
								x.name, g, time, b.Time, b.Why, s.job.Ops, s.job.Tensors, s.links, window, sends)
						}
						best = min(best, time)
					}
				}
			}
			gap := best/b.Time - 1
			if gaps = append(gaps, gap); gap < 1e-9 {
				attained++
			}
		}
		slices.Sort(gaps)
		t.Logf("%-31s %3d jobs, %8d schedules: the best attains the bound on %3.0f %%; its gap is %.1f %% in the median, %.0f %% at most",
			x.name, *jobs, schedules, 100*float64(attained)/float64(*jobs), 100*gaps[len(gaps)/2], 100*gaps[len(gaps)-1])
		total, most = total+attained, most+*jobs
	}
	if 3*total < most {
		t.Errorf("%d of %d jobs attain their bound: the test shows little", total, most)
	}
}

// small is a job without update time on two workers, and its links' alpha and
// beta for an all-reduce; half of each for the halves of one.
type small struct {
	job   *job.Job
	links [][2]float64
}

func smallLinks(r *rand.Rand, n int) (out [][2]float64) {
	alphas := []float64{0, 2, 4, 20}
	for range n {
		out = append(out, [2]float64{alphas[r.IntN(len(alphas))], float64(1 + r.IntN(4))})
	}
	return out
}

// smallJob has two or three layers, a chain or with branches on two lanes.
func smallJob(r *rand.Rand) *job.Job {
	n := 2 + r.IntN(2)
	var fwd, bwd []float64
	var bytes []int64
	for range n {
		fwd, bwd, bytes = append(fwd, float64(r.IntN(5))), append(bwd, float64(r.IntN(7))), append(bytes, int64(1+r.IntN(3)))
	}
	j := job.Chain("small", fwd, bwd, bytes)
	if r.IntN(2) == 0 {
		return j
	}
	j.Lanes = append(j.Lanes, job.Lane{Name: "branch", Kind: job.Device})
	for o := range 2 * n {
		if x := &j.Ops[o]; r.IntN(3) == 0 && o != 0 && o != n && o != 2*n-1 { // not the first and last of a pass
			x.Lane = 1
			x.Deps = []job.OpID{job.OpID(r.IntN(o))}
		}
	}
	last := &j.Ops[2*n-1] // joins the branches
	for o := range 2*n - 1 {
		if j.Ops[o].Lane == 1 {
			last.Deps = append(last.Deps, job.OpID(o))
		}
	}
	slices.Sort(last.Deps)
	last.Deps = slices.Compact(last.Deps)
	return j
}

// generation ends in an iteration, and is read by the one that lies reach later.
type generation struct{ end, reach int }

// structure is the generations of a period.
type structure struct {
	period      int
	generations []generation
}

// structures yields those within limits.
func structures(l plan.Limits) func(yield func(structure) bool) {
	return func(yield func(structure) bool) {
		for period := 1; period <= 3; period++ {
			var fill func(from int, g []generation) bool
			fill = func(from int, g []generation) bool {
				if from == period {
					if float64(len(g)) < l.MinUpdateRate*float64(period)-1e-9 || !ordered(g, period) {
						return true
					}
					return yield(structure{period, slices.Clone(g)})
				}
				for n := 1; from+n <= period; n++ {
					for delay := 0; delay <= l.MaxDelay && delay+n-1 <= l.MaxStaleness; delay++ {
						if !fill(from+n, append(g, generation{from + n - 1, delay + 1})) {
							return false
						}
					}
				}
				return true
			}
			if !fill(0, nil) {
				return
			}
		}
	}
}

// ordered reports whether no generation is read before an older one.
func ordered(g []generation, period int) bool {
	for i := range g {
		next := g[(i+1)%len(g)]
		if i+1 == len(g) {
			next.end += period
		}
		if g[i].end+g[i].reach > next.end+next.reach {
			return false
		}
	}
	return true
}

// send is one transfer of each generation.
type send struct {
	link    int
	kind    cluster.Kind
	bytes   float64
	tensors []job.TensorID
	scatter int // of an all-gather: the send before it; -1
}

// programs yields what is sent of each generation, in order.
func (s small) programs() func(yield func([]send) bool) {
	type item struct {
		tensor job.TensorID
		bytes  float64
	}
	var whole []item
	for k := range s.job.Tensors {
		whole = append(whole, item{job.TensorID(k), float64(s.job.Tensors[k].GradBytes())})
	}
	cuts := [][]item{whole}
	for k, x := range whole {
		if x.bytes > 1 && len(whole) < 3 {
			cut := append(slices.Clone(whole), item{x.tensor, 1})
			cut[k].bytes--
			cuts = append(cuts, cut)
		}
	}
	return func(yield func([]send) bool) {
		for _, items := range cuts {
			for order := range partitions(len(items)) {
				buckets := 1 + slices.Max(order)
				for links := range power(len(s.links), buckets) {
					var reduce, halves, last []send
					for b := range buckets {
						x := send{link: links[b], kind: cluster.AllReduce, scatter: -1}
						for i, at := range order {
							if at == b {
								x.bytes += items[i].bytes
								x.tensors = append(x.tensors, items[i].tensor)
							}
						}
						reduce = append(reduce, x)
						x.kind = cluster.ReduceScatter
						halves = append(halves, x)
						x.kind, x.scatter = cluster.AllGather, len(halves)-1
						halves = append(halves, x)
						x.scatter = b
						last = append(last, x)
					}
					ahead := make([]send, 0, 2*buckets)
					for _, x := range reduce {
						x.kind = cluster.ReduceScatter
						ahead = append(ahead, x)
					}
					for _, sends := range [][]send{reduce, halves, append(ahead, last...)} {
						if !yield(sends) {
							return
						}
					}
				}
			}
		}
	}
}

// partitions yields every ordered partition of n items: by item, its bucket.
func partitions(n int) func(yield func([]int) bool) {
	return func(yield func([]int) bool) {
		for x := range power(n, n) {
			used := make([]bool, n)
			for _, b := range x {
				used[b] = true
			}
			if !slices.Contains(used[:1+slices.Max(x)], false) && !yield(x) {
				return
			}
		}
	}
}

// power yields every way to give n items one of k values.
func power(k, n int) func(yield func([]int) bool) {
	return func(yield func([]int) bool) {
		x := make([]int, n)
		for {
			if !yield(x) {
				return
			}
			i := 0
			for ; i < n; i++ {
				if x[i]++; x[i] < k {
					break
				}
				x[i] = 0
			}
			if i == n {
				return
			}
		}
	}
}

// run is the mean time of an iteration over the second half of so many periods: a
// recursion from what an event waits for, which knows nothing of plans or of the
// simulator.
func (s small) run(g structure, sends []send, window, periods int) float64 {
	n, ops := periods*g.period, len(s.job.Ops)
	m := execution{small: s, structure: g, sends: sends, window: window,
		ops: make([]float64, n*ops), sent: make([]float64, periods*len(g.generations)*len(sends))}
	m.wire = make([]float64, len(m.sent))
	for i := range m.ops {
		m.ops[i] = unknown
	}
	for i := range m.sent {
		m.sent[i] = unknown
	}
	m.before = make([]job.OpID, ops)
	m.ends = slices.Repeat([]job.OpID{-1}, len(s.job.Lanes))
	for o := range s.job.Ops {
		l := s.job.Ops[o].Lane
		m.before[o], m.ends[l] = m.ends[l], job.OpID(o)
	}
	end := func(iteration int) (t float64) {
		for _, o := range m.ends {
			if o >= 0 {
				t = max(t, m.op(iteration, o))
			}
		}
		return t
	}
	return (end(n-1) - end(n/2-1)) / float64(n/2)
}

// What is not computed yet, and what is being computed: that waits for itself.
const unknown, running = -1, -2

type execution struct {
	small
	structure
	sends  []send
	window int
	before []job.OpID // by op: the one before it on its lane
	ends   []job.OpID // by lane: its last
	ops    []float64  // by iteration and op: its end
	sent   []float64  // by generation and send: its completion
	wire   []float64  // and the end of its wire
}

func (m *execution) op(i int, o job.OpID) float64 {
	if i < 0 {
		return 0
	}
	at := &m.ops[i*len(m.job.Ops)+int(o)]
	switch *at {
	case running:
		return math.Inf(1)
	case unknown:
	default:
		return *at
	}
	*at = running
	t := 0.0
	if p := m.before[o]; p >= 0 {
		t = max(t, m.op(i, p))
	} else {
		t = max(t, m.op(i-1, m.ends[m.job.Ops[o].Lane]))
	}
	for _, d := range m.job.Ops[o].Deps {
		t = max(t, m.op(i, d))
	}
	for k := range m.job.Tensors {
		if !slices.Contains(m.job.Tensors[k].Readers, o) {
			continue
		}
		for n, g := range m.generations {
			if (i-g.end-g.reach)%m.period != 0 || i < g.end+g.reach {
				continue
			}
			n += (i - g.end - g.reach) / m.period * len(m.generations)
			for x := range m.sends {
				if m.sends[x].kind != cluster.ReduceScatter && slices.Contains(m.sends[x].tensors, job.TensorID(k)) {
					t = max(t, m.transfer(n, x))
				}
			}
		}
	}
	t += m.job.Ops[o].Time
	m.ops[i*len(m.job.Ops)+int(o)] = t
	return t
}

// transfer is when send x of generation n completes.
func (m *execution) transfer(n, x int) float64 {
	at := n*len(m.sends) + x
	switch m.sent[at] {
	case running:
		return math.Inf(1)
	case unknown:
	default:
		return m.sent[at]
	}
	m.sent[at] = running
	s := &m.sends[x]
	start, wire := 0.0, 0.0
	for p := at - 1; p >= 0; p-- { // the one before it on its link
		if m.sends[p%len(m.sends)].link != s.link {
			continue
		}
		done := m.transfer(p/len(m.sends), p%len(m.sends))
		if wire = m.wire[p]; m.window == 1 {
			wire = done
		}
		break
	}
	if s.scatter >= 0 {
		start = m.transfer(n, s.scatter)
	} else {
		g := m.generations[n%len(m.generations)]
		for _, k := range s.tensors {
			for _, o := range m.job.Tensors[k].Producers {
				start = max(start, m.op(n/len(m.generations)*m.period+g.end, o))
			}
		}
	}
	share := 0.5
	if s.kind == cluster.AllReduce {
		share = 1
	}
	m.wire[at] = max(start, wire) + share*m.links[s.link][1]*s.bytes
	m.sent[at] = m.wire[at] + share*m.links[s.link][0]
	return m.sent[at]
}

func (g structure) String() string { return fmt.Sprintf("period %d of %+v", g.period, g.generations) }
