package view

import (
	"fmt"
	"io"
	"slices"
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
	label, note := transferLabels(j, p)
	return timeline.SVG(w, r.Timeline, timeline.SVGOptions{
		Title:     fmt.Sprintf("%s: %s ms an iteration", p.Policy, cli.Count(r.Time/1000)),
		Iteration: len(r.Iterations) - n, Iterations: n,
		Label: label, Note: note,
	})
}

// initials stand for what a transfer does. An all-reduce goes without saying.
var initials = map[cluster.Kind]string{
	cluster.ReduceScatter: "RS", cluster.AllGather: "AG", cluster.Broadcast: "BC", cluster.Push: "push", cluster.Pull: "pull",
}

// transferLabels calls transfers by the tensors that they carry, and gives those
// that begin with the same tensor one colour. The note explains initials.
func transferLabels(j *job.Job, p *plan.Plan) (label func(*timeline.Span) timeline.Label, note string) {
	prefix := map[string]string{} // by the kind's name
	var notes []string
	for _, prog := range p.Programs {
		for _, t := range prog.Transfers {
			name, short := t.Kind.String(), initials[t.Kind]
			if _, known := prefix[name]; known || short == "" {
				continue
			}
			prefix[name] = short + " "
			if short != name {
				notes = append(notes, short+": "+name)
			}
		}
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
		l.Text = prefix[kind] + l.Group
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
