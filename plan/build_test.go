package plan

import (
	"fmt"
	"slices"
	"testing"

	"weft/cluster"
	"weft/job"
)

// sent lists what a program carries: c0@1 is collective 0 of iteration 1, b2 bucket 2.
func sent(x Program) (out []string) {
	for _, t := range x.Transfers {
		if t.Bucket < 0 {
			out = append(out, fmt.Sprintf("c%d@%d", t.Collective, t.Iteration))
		} else {
			out = append(out, fmt.Sprintf("b%d", t.Bucket))
		}
	}
	return out
}

const collectiveJob = `
tensor a 1
tensor b 1
tensor c 1
lane main
op f1 reads=a
op f2 reads=b
op f3 reads=c
op b3 makes=c
op b2 makes=b
op b1 makes=a
op norm
op u writes=a,b,c
collective loss all-reduce after=norm before=u
collective stats broadcast before=f1
collective sync2 all-reduce after=b3 before=b2
collective sync1 all-reduce after=b2 before=b1
barrier norm
`

// Each op takes 1 us: gradients are ready at 4 (c), 5 (b) and 6 (a). stats waits
// for nothing, sync2 for 4, sync1 for 5, loss for what stands behind the
// barrier. At equal times the collective goes first: b3 releases sync2 and c.
func TestAddCollectives(t *testing.T) {
	j := parseJob(collectiveJob).Job
	p := New(j, "test", "eth0", "eth1")
	for k := 2; k >= 0; k-- {
		p.AllReduce(0, WholeTensors(j, job.TensorID(k)))
	}
	p.Add(1, cluster.Broadcast, 0, Gate{Kind: TransferDone, Link: 0, Transfer: 1})
	if err := p.AddCollectives(j); err != nil {
		t.Fatal(err)
	}
	want := []string{"c1@0", "c2@0", "b0", "c3@0", "b1", "b2", "c0@0"}
	if got := sent(p.Programs[0]); !slices.Equal(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
	if got := p.Programs[1].Transfers[0].Gates[0].Transfer; got != 4 {
		t.Errorf("the gate on bucket 1 names transfer %d, want 4", got)
	}
}

// In order of iteration, then time; the gradients of both iterations travel at
// the end of the second.
func TestAddCollectivesPeriod(t *testing.T) {
	j := parseJob(collectiveJob).Job
	p := New(j, "test", "eth0")
	p.Period, p.Generations = 2, []Generation{{0, 2}}
	p.AllReduce(0, WholeTensors(j, 0, 1, 2))
	if err := p.AddCollectives(j); err != nil {
		t.Fatal(err)
	}
	want := []string{"c1@0", "c2@0", "c3@0", "c0@0", "c1@1", "c2@1", "c3@1", "b0", "c0@1"}
	if got := sent(p.Programs[0]); !slices.Equal(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
}

// The order of the plan's own transfers stays, whatever their times: a is sent
// first and released at 6, so nothing behind it goes sooner.
func TestAddCollectivesKeepsOrder(t *testing.T) {
	j := parseJob(collectiveJob).Job
	p := New(j, "test", "eth0")
	for k := range 3 {
		p.AllReduce(0, WholeTensors(j, job.TensorID(k)))
	}
	if err := p.AddCollectives(j); err != nil {
		t.Fatal(err)
	}
	want := []string{"c1@0", "c2@0", "c3@0", "b0", "b1", "b2", "c0@0"}
	if got := sent(p.Programs[0]); !slices.Equal(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
}

// Where ops take no time, all is released at once; what stands behind the
// barrier still comes last, or it would hold up what the barrier waits for.
func TestAddCollectivesNoTime(t *testing.T) {
	j := parseJob(collectiveJob).Job
	for o := range j.Ops {
		j.Ops[o].Time = 0
	}
	p := New(j, "test", "eth0")
	p.AllReduce(0, WholeTensors(j, 2, 1, 0))
	if err := p.AddCollectives(j); err != nil {
		t.Fatal(err)
	}
	if err := Check(p, j, DefaultLimits).Err(); err != nil {
		t.Errorf("%v: %v", sent(p.Programs[0]), err)
	}
}

func TestAddCollectivesNeedsLink(t *testing.T) {
	j := parseJob(collectiveJob).Job
	if err := New(j, "test").AddCollectives(j); err == nil {
		t.Error("no error")
	}
	j.Collectives[0].Kind = "all-to-some"
	if err := New(j, "test", "eth0").AddCollectives(j); err == nil {
		t.Error("no error")
	}
}

// TestNew: filling the program of a new plan makes it legal.
func TestNew(t *testing.T) {
	j := parseJob(collectiveJob).Job
	p := New(j, "wfbp", "eth0", "eth1")
	for k := 2; k >= 0; k-- {
		p.AllReduce(0, WholeTensors(j, job.TensorID(k)))
	}
	if err := p.AddCollectives(j); err != nil {
		t.Fatal(err)
	}
	if r := Check(p, j, DefaultLimits); !r.OK() {
		t.Errorf("%v", r)
	}
}

// layers is a job of n layers, each an op in forward, backward and update on a
// device lane, and a host op that launches it.
func layers(n int) *job.Job {
	j := &job.Job{Name: "layers", Lanes: []job.Lane{{Name: "host"}, {Name: "stream", Kind: job.Device}}}
	add := func(phase job.Phase) job.OpID {
		host := job.OpID(len(j.Ops))
		j.Ops = append(j.Ops, job.Op{Name: "launch", Phase: phase, Tensor: -1, Time: 1},
			job.Op{Name: "kernel", Lane: 1, Phase: phase, Tensor: -1, Time: 1, Deps: []job.OpID{host}})
		return host + 1
	}
	j.Tensors = make([]job.Tensor, n)
	for k := range n {
		j.Tensors[k] = job.Tensor{Name: fmt.Sprint("t", k), Elements: 1 << 16, Readers: []job.OpID{add(job.Forward)}}
	}
	for k := n - 1; k >= 0; k-- {
		o := add(job.Backward)
		j.Tensors[k].Producers, j.Tensors[k].Readers = []job.OpID{o}, append(j.Tensors[k].Readers, o)
	}
	for k := range n {
		j.Tensors[k].Updaters = []job.OpID{add(job.Update)}
	}
	return j
}

// BenchmarkCheck proves a plan of one all-reduce a layer: over barrier or at
// the read of each tensor, for jobs of some size. ops/s is what scales.
func BenchmarkCheck(b *testing.B) {
	for _, n := range []int{50, 17_000} {
		j := layers(n)
		for _, at := range []Point{AtStep, AtRead} {
			p := New(j, "bench", "eth0")
			for k := n - 1; k >= 0; k-- {
				p.AllReduce(0, WholeTensors(j, job.TensorID(k)))
			}
			p.Updates[0].At = at
			b.Run(fmt.Sprintf("ops=%d/%v", len(j.Ops), at), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					if err := Check(p, j, DefaultLimits).Err(); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
