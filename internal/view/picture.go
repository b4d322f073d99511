package view

import (
	"fmt"
	"io"
	"slices"
	"sort"
	"strings"

	"weft/cluster"
	"weft/internal/cli"
	"weft/internal/svg"
	"weft/job"
	"weft/plan"
	"weft/sim"
	"weft/timeline"
)

// Picture draws the last iterations of a run of p, at most so many, as SVG.
func Picture(w io.Writer, r *sim.Result, j *job.Job, p *plan.Plan, iterations int) error {
	n := min(max(iterations, 1), len(r.Iterations))
	label, note := transferLabels(r.Timeline, j, p)
	return timeline.SVG(w, r.Timeline, timeline.SVGOptions{
		Title:     fmt.Sprintf("%s: %s ms an iteration", p.Policy, cli.Count(r.Time/1000)),
		Iteration: len(r.Iterations) - n, Iterations: n,
		Label: label, Note: note,
	})
}

// signs stand for what a transfer does. An all-reduce goes without saying.
var signs = map[cluster.Kind]string{
	cluster.ReduceScatter: "RS ", cluster.AllGather: "AG ", cluster.Broadcast: "BC ", cluster.Push: "↑", cluster.Pull: "↓",
}

// transferLabels calls transfers by the tensors that they carry, with a prime for
// each iteration that has begun since they were due, and gives those that begin
// with the same tensor one colour. The note explains the signs.
func transferLabels(t *timeline.Timeline, j *job.Job, p *plan.Plan) (label func(*timeline.Span) timeline.Label, note string) {
	sign := map[string]string{} // by the kind's name
	var notes []string
	for _, prog := range p.Programs {
		for _, x := range prog.Transfers {
			name := x.Kind.String()
			if _, known := sign[name]; !known && signs[x.Kind] != "" {
				sign[name] = signs[x.Kind]
				notes = append(notes, strings.TrimSpace(sign[name])+" "+name)
			}
		}
	}
	// age is how many iterations have begun since that of the gradients. One that
	// has just ended is not over for what starts at its very end.
	age := func(s *timeline.Span) int {
		begun := sort.SearchFloat64s(t.Iterations, s.Start+1e-6)
		return max(0, begun-1-int(s.Iteration))
	}
	if slices.ContainsFunc(t.Spans, func(s timeline.Span) bool { return s.Kind == timeline.Transfer && age(&s) > 0 }) {
		notes = append(notes, "t′ of the iteration before")
	}
	names, heads := make([]string, len(p.Buckets)), make([]job.TensorID, len(p.Buckets))
	for i, b := range p.Buckets {
		names[i], heads[i] = tensorNames(j, b.Slices), b.Slices[0].Tensor
	}
	colors := slices.Compact(slices.Sorted(slices.Values(heads)))
	return func(s *timeline.Span) timeline.Label {
		if s.Bucket < 0 {
			return timeline.Label{Text: s.Name, Group: s.Name}
		}
		l := timeline.Label{Group: names[s.Bucket], Color: int(heads[s.Bucket])}
		if len(j.Tensors) > svg.Colors {
			l.Color, _ = slices.BinarySearch(colors, heads[s.Bucket])
		}
		kind, _, _ := strings.Cut(s.Name, " ")
		l.Text = sign[kind] + l.Group + strings.Repeat("′", age(s))
		return l
	}, strings.Join(notes, ", ")
}

// tensorNames names the first few tensors of a bucket.
func tensorNames(j *job.Job, slices []plan.Slice) string {
	const few = 4
	var names []string
	last := job.TensorID(-1)
	for _, s := range slices {
		if s.Tensor == last {
			continue
		}
		if last = s.Tensor; len(names) == few {
			return strings.Join(names, "+") + "+..."
		}
		names = append(names, j.Tensors[s.Tensor].Name)
	}
	return strings.Join(names, "+")
}
