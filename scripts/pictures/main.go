// Pictures draws what each policy makes of the running example, and shows it on
// the policy's page: go run ./scripts/pictures [DIRECTORY], from the root of the
// repository, where DIRECTORY is docs/policies.
package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"weft/cluster"
	"weft/internal/view"
	"weft/job"
	"weft/pair"
	"weft/plan"
	"weft/policy"
	"weft/policy/all"
	"weft/policy/crossover"
	"weft/policy/fusion"
	"weft/sim"
)

func main() {
	dir := "docs/policies"
	if len(os.Args) > 1 {
		dir = os.Args[1]
	}
	for _, p := range all.Policies() {
		if err := show(p, dir); err != nil {
			fmt.Fprintf(os.Stderr, "pictures: %s: %v\n", p.Name, err)
			os.Exit(1)
		}
	}
}

// show writes a policy's picture, and puts it below the title of the page.
func show(p policy.Policy, dir string) error {
	picture, err := draw(p)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, p.Name+".svg"), picture, 0o666); err != nil {
		return err
	}
	file := filepath.Join(dir, p.Name+".md")
	page, err := os.ReadFile(file)
	if os.IsNotExist(err) {
		return nil // a test asks for the page
	}
	if err != nil {
		return err
	}
	title, rest, _ := strings.Cut(string(page), "\n")
	link := fmt.Sprintf("![The running example under %s](%s.svg)", p.Name, p.Name)
	if strings.Contains(rest, link) {
		return nil
	}
	return os.WriteFile(file, []byte(title+"\n\n"+link+"\n"+rest), 0o666)
}

// The running example of sim/testdata/script/rx.txt, which works it out policy by
// policy, at a thousand times its size: four layers whose forward and backward
// passes take so many milliseconds, with gradients of so many kilobytes, each
// reduced in 2 ms and 1 ms a kilobyte. Where there are parameter servers a push and
// a pull take as long.
func example() (*job.Job, *cluster.Cluster) {
	j := job.Chain("rx", []float64{2000, 2000, 1000, 4000}, []float64{4000, 4000, 2000, 8000}, []int64{1000, 2000, 3000, 7000})
	j.Recorded = &job.Recorded{Buckets: []job.RecordedBucket{{Tensors: []job.TensorID{3, 2}}, {Tensors: []job.TensorID{1, 0}}}}
	c := &cluster.Cluster{Nodes: 4, PerNode: 1, Scale: 1, Links: []cluster.Link{{Name: "link", Bandwidth: 8e6}}}
	for _, k := range []struct {
		kind  cluster.Kind
		share float64 // of an all-reduce
	}{{cluster.AllReduce, 1}, {cluster.ReduceScatter, 0.5}, {cluster.AllGather, 0.5}, {cluster.Push, 1}, {cluster.Pull, 1}} {
		for _, bytes := range []int64{1000, 2000} {
			c.Links[0].Curve = append(c.Links[0].Curve, cluster.Point{Kind: k.kind, Bytes: bytes, Time: k.share * (2000 + float64(bytes))})
		}
	}
	return j, c
}

// options are those of the worked example: what is searched for or has defaults
// for real networks is fixed to its scale.
var options = policy.Options{
	FirstBucket: 1000, Bucket: 5000, Cycle: 5000, Slice: 250, Partition: 250, Credit: 3000, Group: 1000, Unit: 250,
}

// build is the policy's plan for the example; crossover's for two of them, each
// under WFBP.
func build(ctx context.Context, pol policy.Policy) (*job.Job, *cluster.Cluster, *plan.Plan, error) {
	j, c := example()
	o := options
	switch pol.Class {
	case policy.Servers:
		c.Servers = &cluster.Servers{Count: 4}
	case policy.Delayed:
		o.Limits = plan.Limits{MaxDelay: 1, MaxStaleness: 3, MinUpdateRate: 1. / 3} // what --max-delay 1 stands for
	}
	if pol.Name != crossover.Crossover.Name {
		p, err := pol.Build(ctx, j, c, o)
		return j, c, p, err
	}
	p, err := fusion.WFBP.Build(ctx, j, c, o)
	if err != nil {
		return nil, nil, nil, err
	}
	x, err := pair.Join(c, []pair.Member{{Job: j, Plan: p}, {Job: j, Plan: p}}, []int{0, 1})
	if err != nil {
		return nil, nil, nil, err
	}
	return x.Job, x.Cluster, x.Plan, nil
}

// draw simulates the policy's plan and draws two iterations of it.
func draw(pol policy.Policy) ([]byte, error) {
	ctx := context.Background()
	j, c, p, err := build(ctx, pol)
	if err != nil {
		return nil, err
	}
	r, err := sim.RunLegal(ctx, j, c, p, plan.AnyLimits, sim.Options{Timeline: true, Ranks: 1})
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	err = view.Picture(&b, r, j, p, 2)
	return b.Bytes(), err
}
