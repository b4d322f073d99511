package agent_test

import (
	"fmt"
	"strings"
	"testing"

	"weft/agent"
	"weft/agent/protocol"
	"weft/agent/worker"
	"weft/cluster"
	"weft/collective"
	"weft/job"
	"weft/plan"
	"weft/transport"
)

// scheduled is a job of two tensors, of 3000 and 5 elements, that have no ops, and a
// plan that cuts the first, sends over two links, and has two buffers.
func scheduled() (*job.Job, *plan.Plan) {
	j := job.Chain("chain", []float64{1, 1}, []float64{1, 1}, []int64{12_000, 20})
	p := plan.New(j, "test", "a", "b")
	p.Buffers = 2
	scatter := p.Add(0, cluster.ReduceScatter, p.AddBucket(plan.Bucket{Slices: []plan.Slice{{Tensor: 0, Length: 1000}, {Tensor: 1, Length: 5}}}), plan.Gate{Kind: plan.GradientReady})
	p.AllReduce(0, plan.Bucket{Slices: []plan.Slice{{Tensor: 0, Offset: 1000, Length: 2000}}})
	p.Add(1, cluster.AllGather, 0, plan.Gate{Kind: plan.TransferDone, Transfer: scatter})
	return j, p
}

func newScheduled(t *testing.T, l collective.Layout, schedule func(h int) *agent.Schedule) []*host {
	t.Helper()
	net := transport.NewMemory(len(l), transport.MemoryOptions{})
	var links []*transport.Memory
	for range 2 {
		links = append(links, transport.NewMemory(len(l), transport.MemoryOptions{}))
	}
	var all []*host
	for h := range l {
		c := agent.Config{World: l.Workers(), Meet: met(net, h, l), Schedule: schedule(h)}
		for _, m := range links {
			c.Schedule.Links = append(c.Schedule.Links, agent.Link{Net: m.Endpoint(h), Cost: cluster.Link{Latency: 25, Bandwidth: 1e9}})
		}
		for r := range l[h] {
			c.Ranks = append(c.Ranks, l[:h].Workers()+r)
		}
		all = append(all, newHost(t, c))
	}
	return all
}

func says(j *job.Job) protocol.Hello {
	h := protocol.Hello{Tensors: []protocol.Tensor{}}
	for i := range j.Tensors {
		h.Tensors = append(h.Tensors, protocol.Tensor{Name: j.Tensors[i].Name, Elements: j.Tensors[i].Elements, DType: j.Tensors[i].Grad.String()})
	}
	return h
}

// A given plan, with parts of tensors, halves of a reduction, two links and two buffers.
func TestSchedule(t *testing.T) {
	for _, l := range []collective.Layout{{1, 1}, {2, 1, 1}} {
		j, p := scheduled()
		hosts := newScheduled(t, l, func(int) *agent.Schedule { return &agent.Schedule{Plan: p, Job: j, Replay: true} })
		must(t, hosts, func(w *worker.Worker) error { return w.Hello(says(j)) })
		n := l.Workers()
		must(t, hosts, func(w *worker.Worker) error {
			declare := func(i int) error {
				for b := range w.Welcome.Buckets {
					at := worker.Region(w.Input, w.Welcome.Place(b, i))
					for k := 0; k < len(at); k += 4 {
						put32(at[k:], float32(w.Rank+k+i))
					}
					if err := w.Ready(b, i); err != nil {
						return err
					}
				}
				return nil
			}
			if got := len(w.Welcome.Buckets[0].Slices); got != 2 {
				return fmt.Errorf("bucket 0 has %d slices, want 2", got)
			}
			for i := range 6 {
				if err := declare(i); err != nil {
					return err
				}
				for range w.Welcome.Buckets {
					b, it, err := w.Done()
					if err != nil {
						return err
					}
					for k, v := range get32(worker.Region(w.Output, w.Welcome.Place(b, it))) {
						if want := float32(n*(n-1)/2 + n*(4*k+i)); v != want {
							return fmt.Errorf("element %d of bucket %d is %v, want %v", k, b, v, want)
						}
					}
				}
			}
			return nil
		})
		must(t, hosts, func(w *worker.Worker) error { return w.Goodbye() })
	}
}

// What agents cannot execute they refuse, by transfer; and hosts that were given
// different plans.
func TestScheduleRefused(t *testing.T) {
	for want, change := range map[string]func(h int, j *job.Job, s *agent.Schedule){
		"link a, transfer 0 (push of bucket 0): agents reduce among workers, and have no parameter servers": func(_ int, _ *job.Job, s *agent.Schedule) {
			s.Plan.Programs[0].Transfers[0].Kind = cluster.Push
		},
		"link b, transfer 0 (all-gather of bucket 0): it waits for the end of an iteration, which workers do not tell": func(_ int, _ *job.Job, s *agent.Schedule) {
			s.Plan.Programs[1].Transfers[0].Gates = []plan.Gate{{Kind: plan.Boundary}}
		},
		"link a, transfer 1 (all-reduce of bucket 1): it waits for op 0, and nobody tells when ops end": func(_ int, _ *job.Job, s *agent.Schedule) {
			s.Plan.Programs[0].Transfers[1].Gates = []plan.Gate{{Kind: plan.OpDone}}
		},
		"the plan has programs for 3 links, this host 2 links": func(_ int, _ *job.Job, s *agent.Schedule) {
			s.Plan.Programs = append(s.Plan.Programs, plan.Program{Link: "c"})
		},
		"give every host the same plan": func(h int, _ *job.Job, s *agent.Schedule) { s.Plan.Policy = fmt.Sprint(h) },
		"its gradients are of different types: t1 of float32, t2 of int32": func(_ int, j *job.Job, s *agent.Schedule) {
			j.Tensors[1].Grad, j.Tensors[1].Param = job.Int32, job.Int32
			s.Plan.Tensors = j.TensorsFingerprint()
		},
	} {
		hosts := newScheduled(t, collective.Layout{1, 1}, func(h int) *agent.Schedule {
			j, p := scheduled()
			s := &agent.Schedule{Plan: p, Job: j}
			change(h, j, s)
			return s
		})
		j, _ := scheduled()
		for _, err := range everywhere(hosts, func(w *worker.Worker) error { return w.Hello(says(j)) }) {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("got %v, want %s", err, want)
			}
		}
	}
}
