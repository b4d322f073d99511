package timeline

import (
	"cmp"
	"slices"
)

// All lists the ranks that r stands for, itself included.
func (r Rank) All() []int {
	if len(r.Stands) == 0 {
		return []int{r.Rank}
	}
	return r.Stands
}

// Weight is how many ranks r stands for, itself included.
func (r Rank) Weight() int { return max(1, len(r.Stands)) }

// World is the number of ranks, those that another stands for included.
func (t *Timeline) World() int {
	n := 0
	for _, r := range t.Ranks {
		n += r.Weight()
	}
	return n
}

// Expand writes out the ranks that another stands for, each with the spans and
// flows of the one that stands for it, in order of rank. The result shares
// names with t.
func (t *Timeline) Expand() *Timeline {
	e := &Timeline{Name: t.Name, Lanes: slices.Clone(t.Lanes), Iterations: slices.Clone(t.Iterations)}
	type copied struct{ rank, of int } // rank behaves as position of
	var all []copied
	for i, r := range t.Ranks {
		for _, n := range r.All() {
			all = append(all, copied{n, i})
		}
	}
	slices.SortFunc(all, func(a, b copied) int { return cmp.Compare(a.rank, b.rank) })
	copies := make([][]int32, len(t.Ranks)) // positions in e.Ranks
	for i, c := range all {
		e.Ranks = append(e.Ranks, Rank{Rank: c.rank})
		copies[c.of] = append(copies[c.of], int32(i))
	}
	first := make([]int32, len(t.Spans)) // where the copies of a span begin in e.Spans
	for i, s := range t.Spans {
		first[i] = int32(len(e.Spans))
		for _, rank := range copies[s.Rank] {
			s.Rank = rank
			e.Spans = append(e.Spans, s)
		}
	}
	for _, f := range t.Flows {
		from, to := t.Spans[f.From].Rank, t.Spans[f.To].Rank
		for k := range int32(len(copies[to])) {
			// Within a rank the arrow stays in the copy; from another rank it
			// comes from that rank's first copy.
			source := first[f.From]
			if from == to {
				source += k
			}
			e.Flows = append(e.Flows, Flow{source, first[f.To] + k})
		}
	}
	e.Sort()
	return e
}

// Sort brings spans and flows into the order that Timeline documents. Spans
// that start at once on one lane are ordered by end, so that one of no length
// comes before the one that follows it, then by kind, then as they were.
func (t *Timeline) Sort() {
	order := make([]int32, len(t.Spans))
	for i := range order {
		order[i] = int32(i)
	}
	slices.SortStableFunc(order, func(i, j int32) int {
		a, b := &t.Spans[i], &t.Spans[j]
		return cmp.Or(byStart(a, b), cmp.Compare(a.End, b.End), cmp.Compare(a.Kind, b.Kind))
	})
	spans, place := make([]Span, len(t.Spans)), make([]int32, len(t.Spans))
	for to, from := range order {
		spans[to], place[from] = t.Spans[from], int32(to)
	}
	t.Spans = spans
	for i, f := range t.Flows {
		t.Flows[i] = Flow{place[f.From], place[f.To]}
	}
	slices.SortFunc(t.Flows, func(a, b Flow) int { return cmp.Or(cmp.Compare(a.From, b.From), cmp.Compare(a.To, b.To)) })
}

func byStart(a, b *Span) int {
	return cmp.Or(cmp.Compare(a.Start, b.Start), cmp.Compare(a.Rank, b.Rank), cmp.Compare(a.Lane, b.Lane))
}
