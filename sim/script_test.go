package sim_test

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"

	"weft/bound"
	"weft/cluster"
	"weft/job"
	"weft/plan"
	"weft/policy"
	"weft/policy/all"
	"weft/sim"
	"weft/timeline"

	"github.com/cockroachdb/datadriven"
)

// TestScripts runs testdata/script/*: job, cluster, plan and timeline side by side.
// The commands:
//
//	chain f=(2,2) b=(4,4) s=(1,2)    the job: a chain of layers on one device lane
//	ops                              the job, op by op (see parseOps)
//	cluster alpha=2 beta=1 [...]     all-reduce of S bytes takes alpha + beta·S us,
//	                                 its halves half of that each; with
//	                                 servers=colocated or servers=dedicated so
//	                                 does a push, and a pull
//	run policy=NAME [...]            simulate a policy's plan
//	run sends=(4,3+2,1) [...]        simulate a plan written here (see scriptedPlan)
//	bound [servers]                  the synchronous lower bound
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/script", func(t *testing.T, path string) {
		s := script{t: t}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			s.t = t
			switch d.Cmd {
			case "chain":
				s.job = job.Chain("chain", floats(t, d, "f"), floats(t, d, "b"), ints(t, d, "s"))
				return ""
			case "ops":
				s.job = parseOps(t, d.Input)
				return ""
			case "cluster":
				s.cluster = scriptedCluster(t, d)
				return ""
			case "run":
				return s.run(d)
			case "bound":
				of := bound.Synchronous
				if d.HasArg("servers") {
					of = bound.Servers
				}
				b, err := of(s.job, s.cluster)
				if err != nil {
					return "error: " + err.Error() + "\n"
				}
				return fmt.Sprintf("%s us: %s\n", number(b.Time), b.Why)
			}
			t.Fatalf("%s: unknown command %q", d.Pos, d.Cmd)
			return ""
		})
	})
}

type script struct {
	t       *testing.T
	job     *job.Job
	cluster *cluster.Cluster
}

func (s *script) run(d *datadriven.TestData) string {
	p, err := s.plan(d)
	if err != nil {
		return "error: " + err.Error() + "\n"
	}
	o := sim.Options{Timeline: true}
	if d.HasArg("iterations") {
		d.ScanArgs(s.t, "iterations", &o.Iterations)
	}
	r, err := sim.Run(context.Background(), s.job, s.cluster, p, o)
	if err != nil {
		return "error: " + err.Error() + "\n"
	}
	var out strings.Builder
	fmt.Fprintf(&out, "iteration %s us", number(r.Time))
	m := r.Timeline.Metrics(r.Steady, len(r.Iterations)).Mean
	fmt.Fprintf(&out, ", computation %s, communication %s, exposed %s\n", number(m.Computation), number(m.Communication), number(m.Exposed))
	if d.HasArg("each") {
		fmt.Fprintf(&out, "each:")
		for _, x := range r.Iterations {
			fmt.Fprintf(&out, " %s", number(x))
		}
		fmt.Fprintln(&out)
	}
	if d.HasArg("spans") {
		var i int
		d.ScanArgs(s.t, "spans", &i)
		spans(&out, r.Timeline, i)
	}
	if d.HasArg("draw") {
		var i int
		d.ScanArgs(s.t, "draw", &i)
		if err := timeline.Draw(&out, r.Timeline, timeline.DrawOptions{Iteration: i, Queued: true}); err != nil {
			s.t.Fatal(err)
		}
	}
	return out.String()
}

// spans lists the transfers and waits of iteration i, times from its first
// backward op on the first rank.
func spans(w *strings.Builder, t *timeline.Timeline, i int) {
	origin := math.Inf(1)
	for _, s := range t.Spans {
		if s.Kind == timeline.Compute && s.Phase == uint8(job.Backward) && int(s.Iteration) == i {
			origin = min(origin, s.Start)
		}
	}
	for _, s := range t.Spans {
		if s.Rank == 0 && int(s.Iteration) == i && s.Kind != timeline.Compute {
			what := map[timeline.SpanKind]string{timeline.Transfer: "transfer", timeline.Queued: "queued", timeline.Wait: "wait"}[s.Kind]
			fmt.Fprintf(w, "%8s-%-6s %-8s %s: %s\n", number(s.Start-origin), number(s.End-origin), what, t.Lanes[s.Lane].Name, s.Name)
		}
	}
}

func (s *script) plan(d *datadriven.TestData) (*plan.Plan, error) {
	if d.HasArg("policy") {
		var name string
		var o policy.Options
		d.ScanArgs(s.t, "policy", &name)
		for arg, to := range map[string]any{"first": &o.FirstBucket, "bucket": &o.Bucket, "fusion": &o.Fusion, "inflight": &o.InFlight, "slice": &o.Slice, "partition": &o.Partition, "credit": &o.Credit, "group": &o.Group, "unit": &o.Unit} {
			if d.HasArg(arg) {
				d.ScanArgs(s.t, arg, to)
			}
		}
		if d.HasArg("cycle") {
			o.Cycle = floats(s.t, d, "cycle")[0]
		}
		if d.HasArg("maxdelay") {
			var n int
			d.ScanArgs(s.t, "maxdelay", &n)
			o.Limits = plan.DelayLimits(n)
		}
		o.Without = args(d, "without")
		pol, err := all.Lookup(name)
		if err != nil {
			return nil, err
		}
		p, err := pol.Build(context.Background(), s.job, s.cluster, o)
		if err != nil || !d.HasArg("spread") {
			return p, err
		}
		return policy.Spread(s.job, s.cluster, p)
	}
	return s.scriptedPlan(d)
}

// scriptedPlan reads sends=(4,3+2,1/2,1/2): the transfers of the first link in
// order, each of the tensors joined by +, by number from 1; i/n is the next of n
// equal slices of tensor i. 4+3> pushes them, and 4+3< pulls them, behind the pushes
// so far that hold them. at=read updates at the first read, delay=d an
// iteration d later; window and bytes bound what is in flight.
func (s *script) scriptedPlan(d *datadriven.TestData) (*plan.Plan, error) {
	var names []string
	for _, l := range s.cluster.Links {
		names = append(names, l.Name)
	}
	p := plan.New(s.job, "script", names...)
	cut := map[string]map[int]int64{"": {}, ">": {}, "<": {}}
	for l := range names {
		arg := "sends"
		if l > 0 {
			arg = fmt.Sprint("sends", l+1)
		}
		if !d.HasArg(arg) {
			continue
		}
		for _, send := range args(d, arg) {
			var b plan.Bucket
			send, way := strings.TrimRight(send, "<>"), send[len(strings.TrimRight(send, "<>")):]
			for _, item := range strings.Split(send, "+") {
				k, n, sliced := strings.Cut(item, "/")
				id := atoi(s.t, k) - 1
				whole := s.job.Tensors[id].Elements
				length := whole
				if sliced {
					length = whole / int64(atoi(s.t, n))
				}
				b.Slices = append(b.Slices, plan.Slice{Tensor: job.TensorID(id), Offset: cut[way][id], Length: length})
				cut[way][id] += length
			}
			switch way {
			case "":
				p.AllReduce(l, b)
			case ">":
				p.Add(l, cluster.Push, p.AddBucket(b), plan.Gate{Kind: plan.GradientReady})
			case "<":
				p.Add(l, cluster.Pull, p.AddBucket(b), pushesOf(p, b)...)
			}
		}
	}
	if d.HasArg("at") {
		p.Updates[0].At = plan.AtRead
	}
	if d.HasArg("delay") {
		d.ScanArgs(s.t, "delay", &p.Updates[0].Iteration)
	}
	for l := range p.Programs {
		if d.HasArg("window") {
			d.ScanArgs(s.t, "window", &p.Programs[l].Window.Transfers)
		}
		if d.HasArg("bytes") {
			d.ScanArgs(s.t, "bytes", &p.Programs[l].Window.Bytes)
		}
	}
	return p, p.AddCollectives(s.job)
}

// pushesOf gates a transfer on the pushes of what b holds.
func pushesOf(p *plan.Plan, b plan.Bucket) []plan.Gate {
	var gates []plan.Gate
	for l := range p.Programs {
		for i, t := range p.Programs[l].Transfers {
			if t.Kind == cluster.Push && slices.ContainsFunc(p.Buckets[t.Bucket].Slices, func(x plan.Slice) bool {
				return slices.ContainsFunc(b.Slices, func(y plan.Slice) bool {
					return x.Tensor == y.Tensor && x.Offset < y.Offset+y.Length && y.Offset < x.Offset+x.Length
				})
			}) {
				gates = append(gates, plan.Gate{Kind: plan.TransferDone, Link: l, Transfer: i})
			}
		}
	}
	return gates
}

// scriptedCluster makes links whose all-reduce of S bytes takes alpha + beta·S
// microseconds: alpha=(2,3) makes two. scale=(1,2) sets the workers' factors.
func scriptedCluster(t *testing.T, d *datadriven.TestData) *cluster.Cluster {
	alphas, betas := floats(t, d, "alpha"), floats(t, d, "beta")
	c := &cluster.Cluster{Nodes: 4, PerNode: 1, Scale: 1}
	for l := range alphas {
		link := cluster.Link{Name: fmt.Sprint("net", l), Bandwidth: 8e6 / betas[l]}
		for _, k := range []struct {
			kind  cluster.Kind
			share float64 // of an all-reduce
		}{{cluster.AllReduce, 1}, {cluster.ReduceScatter, 0.5}, {cluster.AllGather, 0.5}, {cluster.Broadcast, 1}, {cluster.Push, 1}, {cluster.Pull, 1}} {
			a, b := k.share*alphas[l], k.share*betas[l]
			link.Curve = append(link.Curve,
				cluster.Point{Kind: k.kind, Bytes: 1, Time: a + b},
				cluster.Point{Kind: k.kind, Bytes: 2, Time: a + 2*b})
		}
		if d.HasArg("inflight") {
			d.ScanArgs(t, "inflight", &link.InFlight)
		}
		if d.HasArg("medium") {
			d.ScanArgs(t, "medium", &link.Medium)
		}
		c.Links = append(c.Links, link)
	}
	if d.HasArg("servers") {
		c.Servers = &cluster.Servers{Count: 4, Colocated: args(d, "servers")[0] == "colocated"}
	}
	if d.HasArg("overlap") {
		c.Overlap = floats(t, d, "overlap")[0]
	}
	if d.HasArg("scale") {
		f := floats(t, d, "scale")
		c.Nodes = len(f)
		for r := range f {
			c.Workers = append(c.Workers, cluster.Worker{Rank: r, Scale: f[r]})
		}
	}
	return c
}

// parseOps reads a job op by op: "NAME LANE PHASE TIME [after A B] [reads 1 2]
// [grads 1 2] [updates 1 2]", lanes named on first use (host..., device...),
// then "tensor BYTES" lines and "broadcast BYTES after A before B" lines.
func parseOps(t *testing.T, text string) *job.Job {
	j := &job.Job{Name: "ops"}
	ops, lanes := map[string]job.OpID{}, map[string]job.LaneID{}
	for _, line := range strings.Split(text, "\n") {
		switch f := strings.Fields(line); {
		case len(f) == 0 || f[0] == "broadcast":
		case f[0] == "tensor":
			j.Tensors = append(j.Tensors, job.Tensor{Name: fmt.Sprint("t", len(j.Tensors)+1), Elements: int64(atoi(t, f[1])), Param: job.Uint8, Grad: job.Uint8})
		default: // names may be used before their line
			ops[f[0]] = job.OpID(len(ops))
		}
	}
	for _, line := range strings.Split(text, "\n") {
		f := strings.Fields(line)
		if len(f) == 0 || f[0] == "tensor" {
			continue
		}
		if f[0] == "broadcast" {
			c := job.Collective{Name: "broadcast", Kind: "broadcast", Bytes: int64(atoi(t, f[1]))}
			list(f[2:], func(verb, word string) {
				if verb == "after" {
					c.After = append(c.After, ops[word])
				} else {
					c.Before = append(c.Before, ops[word])
				}
			})
			j.Collectives = append(j.Collectives, c)
			continue
		}
		id := job.OpID(len(j.Ops))
		l, ok := lanes[f[1]]
		if !ok {
			l = job.LaneID(len(j.Lanes))
			lanes[f[1]] = l
			kind := job.Host
			if strings.HasPrefix(f[1], "device") {
				kind = job.Device
			}
			j.Lanes = append(j.Lanes, job.Lane{Name: f[1], Kind: kind})
		}
		o := job.Op{Name: f[0], Lane: l, Time: float(t, f[3]), Tensor: -1}
		if err := o.Phase.UnmarshalText([]byte(f[2])); err != nil {
			t.Fatal(err)
		}
		list(f[4:], func(verb, word string) {
			if verb == "after" {
				o.Deps = append(o.Deps, ops[word])
				return
			}
			x := &j.Tensors[atoi(t, word)-1]
			to := map[string]*[]job.OpID{"reads": &x.Readers, "grads": &x.Producers, "updates": &x.Updaters}[verb]
			*to = append(*to, id)
		})
		j.Ops = append(j.Ops, o)
	}
	return j
}

// list calls f for each word behind a verb.
func list(words []string, f func(verb, word string)) {
	verb := ""
	for _, w := range words {
		switch w {
		case "after", "before", "reads", "grads", "updates":
			verb = w
		default:
			f(verb, w)
		}
	}
}

func args(d *datadriven.TestData, name string) []string {
	for _, a := range d.CmdArgs {
		if a.Key == name {
			return a.Vals
		}
	}
	return nil
}

func floats(t *testing.T, d *datadriven.TestData, name string) []float64 {
	var out []float64
	for _, v := range args(d, name) {
		out = append(out, float(t, v))
	}
	return out
}

func ints(t *testing.T, d *datadriven.TestData, name string) []int64 {
	var out []int64
	for _, v := range args(d, name) {
		out = append(out, int64(atoi(t, v)))
	}
	return out
}

func float(t *testing.T, s string) float64 {
	t.Helper()
	v, err := strconv.ParseFloat(s, 64)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func atoi(t *testing.T, s string) int {
	t.Helper()
	v, err := strconv.Atoi(s)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func number(v float64) string { return strconv.FormatFloat(math.Round(v*1000)/1000, 'f', -1, 64) }
