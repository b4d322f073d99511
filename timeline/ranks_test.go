package timeline

import (
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestExpandRX(t *testing.T) {
	tl := rx(2, 0)
	tl.Ranks[0].Rank = 2
	e := tl.Expand()
	if err := e.Validate(); err != nil {
		t.Fatal(err)
	}
	if want := []Rank{{Rank: 0}, {Rank: 2}}; !reflect.DeepEqual(e.Ranks, want) {
		t.Fatalf("ranks: got %v, want %v", e.Ranks, want)
	}
	// By start, then rank, then lane: b3 and ar4 start at 8.
	var first []string
	for _, s := range e.Spans[:6] {
		first = append(first, e.Ranks[s.Rank].title()+" "+s.Name)
	}
	want := []string{"rank 0 b4", "rank 2 b4", "rank 0 b3", "rank 0 ar4", "rank 2 b3", "rank 2 ar4"}
	if !slices.Equal(first, want) {
		t.Errorf("first spans: got %q, want %q", first, want)
	}
	// Arrows stay within their rank.
	if len(e.Flows) != 2*len(tl.Flows) {
		t.Fatalf("%d flows, want two times %d", len(e.Flows), len(tl.Flows))
	}
	for _, f := range e.Flows {
		if a, b := e.Spans[f.From], e.Spans[f.To]; a.Rank != b.Rank {
			t.Errorf("flow from %q of rank %d to %q of rank %d", a.Name, a.Rank, b.Name, b.Rank)
		}
	}
}

func TestExpandProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tl := timelines().Draw(t, "timeline")
		e := tl.Expand()
		if err := e.Validate(); err != nil {
			t.Fatal(err)
		}
		if e.World() != tl.World() || len(e.Ranks) != tl.World() {
			t.Fatalf("world %d becomes %d, in %d ranks", tl.World(), e.World(), len(e.Ranks))
		}
		of := func(tl *Timeline, rank int32) (spans []Span) {
			for _, s := range tl.Spans {
				if s.Rank == rank {
					s.Rank = 0
					spans = append(spans, s)
				}
			}
			return spans
		}
		for i, r := range tl.Ranks {
			for _, n := range r.All() {
				j := slices.IndexFunc(e.Ranks, func(r Rank) bool { return r.Rank == n })
				if got, want := of(e, int32(j)), of(tl, int32(i)); !slices.Equal(got, want) {
					t.Fatalf("rank %d: spans %v, want %v of rank %d", n, got, want, r.Rank)
				}
			}
		}
		if again := e.Expand(); !reflect.DeepEqual(again, e) {
			t.Fatalf("expanded twice: got %+v, want %+v", again, e)
		}
	})
}

// An op of no length comes before the one that starts where it ends; equals
// stay as they were.
func TestSortTies(t *testing.T) {
	tl := &Timeline{Spans: []Span{{Name: "d", Start: 5, End: 9}, {Name: "a", Start: 5, End: 5}, {Name: "b", Start: 5, End: 5}, {Name: "c", Start: 5, End: 7}}}
	tl.Sort()
	got := ""
	for _, s := range tl.Spans {
		got += s.Name
	}
	if got != "abcd" {
		t.Errorf("got %s, want abcd", got)
	}
}

func TestSortKeepsArrows(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tl := timelines().Draw(t, "timeline")
		order := rapid.Permutation(seq(len(tl.Spans))).Draw(t, "order")
		shuffled := &Timeline{Spans: make([]Span, len(tl.Spans))}
		place := make([]int32, len(order))
		for to, from := range order {
			shuffled.Spans[to], place[from] = tl.Spans[from], int32(to)
		}
		for _, f := range tl.Flows {
			shuffled.Flows = append(shuffled.Flows, Flow{place[f.From], place[f.To]})
		}
		shuffled.Sort()
		for i := range tl.Spans {
			if byStart(&shuffled.Spans[i], &tl.Spans[i]) != 0 {
				t.Fatalf("span %d is %+v, want one like %+v", i, shuffled.Spans[i], tl.Spans[i])
			}
		}
		ends := func(tl *Timeline) map[[2]Span]int {
			m := map[[2]Span]int{}
			for _, f := range tl.Flows {
				m[[2]Span{tl.Spans[f.From], tl.Spans[f.To]}]++
			}
			return m
		}
		if got, want := ends(shuffled), ends(tl); !reflect.DeepEqual(got, want) {
			t.Fatalf("arrows: got %v, want %v", got, want)
		}
	})
}

func seq(n int) []int {
	s := make([]int, n)
	for i := range s {
		s[i] = i
	}
	return s
}
