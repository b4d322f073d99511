package pair

import (
	"errors"
	"math"
	"slices"
	"testing"

	"weft/bound"
	"weft/cluster"
	"weft/internal/random"
	"weft/job"
	"weft/plan"
	"weft/policy"
	"weft/policy/all"
	"weft/policy/fusion"
	"weft/sim"

	"pgregory.net/rapid"
)

// slack is what rounding every time and cost to a nanosecond may add up to in
// a round of these jobs, in microseconds.
func slack(jobs ...*job.Job) float64 {
	n := 1
	for _, j := range jobs {
		n += len(j.Ops) + 4*len(j.Tensors)
	}
	return 0.002 * maxTurns * float64(n)
}

// chain draws a chain whose updates take time.
func chain(t *rapid.T) *job.Job {
	j := random.Chain(t, 6)
	for o := range j.Ops {
		if j.Ops[o].Phase == job.Update {
			j.Ops[o].Time = float64(rapid.IntRange(0, 50).Draw(t, "update"))
		}
	}
	return j
}

func build(t *rapid.T, p policy.Policy, j *job.Job, c *cluster.Cluster) Member {
	pl, err := p.Build(t.Context(), j, c, policy.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return Member{j, pl}
}

func alone(t *rapid.T, m Member, c *cluster.Cluster) *Alone {
	r, err := sim.RunLegal(t.Context(), m.Job, c, m.Plan, plan.DefaultLimits, sim.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return &Alone{Member: m, Time: r.Time, Exposed: r.Mean.Exposed}
}

func simulated(t *rapid.T, x *Joined) float64 {
	r, err := sim.RunLegal(t.Context(), x.Job, x.Cluster, x.Plan, plan.DefaultLimits, sim.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return r.Time
}

func join(t *rapid.T, c *cluster.Cluster, members []Member, turns []int) *Joined {
	x, err := Join(c, members, turns)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

// The closed form is what strict alternation comes to, whatever the plans
// behind a barrier, when the jobs' transfers do not meet: on a link each.
func TestFormula(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := random.Cluster(t)
		p := rapid.SampledFrom([]policy.Policy{fusion.WFBP, fusion.DDP, fusion.MGWFBP, fusion.ASCWFBP}).Draw(t, "policy")
		a, b := alone(t, build(t, p, chain(t), c), c), alone(t, build(t, p, chain(t), c), c)
		o := Order{1, rapid.IntRange(1, maxTurns).Draw(t, "turns")}
		if rapid.Bool().Draw(t, "the first") {
			o = Order{o.Second, o.First}
		}
		x := join(t, c, []Member{a.Member, b.Member}, o.turns())
		for l := range x.Cluster.Links {
			x.Cluster.Links[l].Medium = ""
		}
		m, n := float64(o.First), float64(o.Second)
		run := func(j *Alone, turns float64) float64 { return turns*j.Time - j.Exposed }
		want := max(run(a, m)+run(b, n), m*a.Time, n*b.Time)
		if got := simulated(t, x); math.Abs(got-want) > slack(a.Job, b.Job) {
			t.Fatalf("%v: simulated %v, formula %v", o, got, want)
		}
	})
}

// On one link without start-ups, a round is never shorter than the closed form,
// nor than all that the jobs send.
func TestSharedLink(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := cluster.Uniform(2, 1, cluster.Link{Name: "net", Bandwidth: float64(rapid.IntRange(1, 100).Draw(t, "Gbit")) * 1e9})
		a, b := alone(t, build(t, fusion.WFBP, chain(t), c), c), alone(t, build(t, fusion.WFBP, chain(t), c), c)
		o := Order{rapid.IntRange(1, maxTurns).Draw(t, "turns"), 1}
		got := simulated(t, join(t, c, []Member{a.Member, b.Member}, o.turns()))
		wire, err := c.Cost(0, cluster.AllReduce, int64(o.First)*a.Job.Bytes()+b.Job.Bytes())
		if err != nil {
			t.Fatal(err)
		}
		if least := max(Period(a, b, o), wire.Total()); got < least-slack(a.Job, b.Job) {
			t.Fatalf("%v: a round of %v, less than %v", o, got, least)
		}
	})
}

// A job that alternates with nobody takes the time that it takes alone, in any
// number of turns: what Join makes of it is still that job.
func TestAloneInTurns(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := random.Cluster(t)
		m := Member{Job: chain(t)}
		p := rapid.SampledFrom(all.Policies()).Draw(t, "policy")
		var err error
		m.Plan, err = p.Build(t.Context(), m.Job, c, policy.Options{})
		if errors.Is(err, policy.ErrUnsuitable) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		n := rapid.IntRange(1, 4).Draw(t, "turns")
		x, err := Join(c, []Member{m}, make([]int, n))
		if errors.Is(err, policy.ErrUnsuitable) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		want := float64(n) * alone(t, m, c).Time
		if got := simulated(t, x); math.Abs(got-want) > slack(m.Job) {
			t.Fatalf("%s, %d turns: %v, alone %v", p.Name, n, got, want)
		}
	})
}

// Whatever the jobs, the joint plan of any of their plans is legal, runs, and is
// no faster than each job's own bound. Workers may differ.
func TestJoin(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := random.Cluster(t)
		random.Unequal(t, c)
		c.Jitter = 0
		for i := range c.Workers {
			c.Workers[i].Jitter = 0
		}
		var members []Member
		for range 2 {
			j := random.Job(t)
			p := rapid.SampledFrom(all.Policies()).Draw(t, "policy")
			pl, err := p.Build(t.Context(), j, c, policy.Options{Copies: rapid.Bool().Draw(t, "copies")})
			if errors.Is(err, policy.ErrUnsuitable) {
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			members = append(members, Member{j, pl})
		}
		turns := rapid.SampledFrom([][]int{{0, 1}, {0, 1}, {0, 0, 1}, {1, 0, 1, 1}}).Draw(t, "turns")
		x, err := Join(c, members, turns)
		if errors.Is(err, policy.ErrUnsuitable) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := x.Job.Validate(); err != nil {
			t.Fatal(err)
		}
		got := simulated(t, x)
		for i, m := range members {
			n := 0
			for _, k := range turns {
				if k == i {
					n++
				}
			}
			floor, err := bound.Of(bound.ClassOf(m.Plan), m.Job, c, plan.DefaultLimits)
			if err != nil {
				t.Fatal(err)
			}
			if got < float64(n)*floor.Time-slack(m.Job) {
				t.Fatalf("%d iterations of job %d in a round of %v; one takes %v", n, i, got, floor.Time)
			}
		}
	})
}

// The chosen sets are the best of all: by trying them all.
func TestMatch(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 7).Draw(t, "jobs")
		single, joint := make([]float64, n), make([][]float64, n)
		for i := range n {
			single[i] = float64(rapid.IntRange(0, 20).Draw(t, "alone"))
		}
		for i := range n {
			joint[i] = make([]float64, n)
			for j := i + 1; j < n; j++ {
				joint[i][j] = float64(rapid.IntRange(0, 50).Draw(t, "together"))
			}
		}
		var try func(left []int) float64
		try = func(left []int) float64 {
			if len(left) == 0 {
				return 0
			}
			i, rest := left[0], left[1:]
			best := single[i] + try(rest)
			for k, j := range rest {
				best = min(best, joint[i][j]+try(slices.Delete(slices.Clone(rest), k, k+1)))
			}
			return best
		}
		left := make([]int, n)
		for i := range left {
			left[i] = i
		}
		partner, total := match(single, joint)
		sum := 0.0
		for i, j := range partner {
			switch {
			case partner[j] != i:
				t.Fatalf("partners %v", partner)
			case i == j:
				sum += single[i]
			case i < j:
				sum += joint[i][j]
				if joint[i][j] >= single[i]+single[j] {
					t.Fatalf("%d and %d take %v together, %v and %v alone", i, j, joint[i][j], single[i], single[j])
				}
			}
		}
		if want := try(left); total != want || sum != want {
			t.Fatalf("total %v, sum of the sets %v, want %v", total, sum, want)
		}
	})
}
