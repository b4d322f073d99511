package pilot

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"pgregory.net/rapid"
)

// TestScripts runs testdata/*. The commands:
//
//	pilot [warm=N] [profile=N] [settle=N] [window=N] [turns=N] [rest=N] [drift=PERCENT]
//	    a training that begins.
//	review TIMES...
//	    iterations have taken so many milliseconds; N*T: N of T each.
//	made [delayed] [none=WHY]
//	    a plan was made, or not.
func TestScripts(t *testing.T) {
	var p *Pilot
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			switch d.Cmd {
			case "pilot":
				c := Config{Warm: 1, Profile: 2, Settle: 1, Window: 2, Turns: 2, Rest: 10, Drift: 0.15}
				for name, to := range map[string]*int{"warm": &c.Warm, "profile": &c.Profile, "settle": &c.Settle, "window": &c.Window, "turns": &c.Turns, "rest": &c.Rest} {
					d.MaybeScanArgs(t, name, to)
				}
				p = New(c)
				return fmt.Sprintf("plain buckets, %d iterations\n", p.First())
			case "review":
				var times []float64
				for word := range strings.FieldsSeq(d.Input) {
					n, each, many := strings.Cut(word, "*")
					if !many {
						n, each = "1", word
					}
					count, err := strconv.Atoi(n)
					ms, err2 := strconv.ParseFloat(each, 64)
					if err = errors.Join(err, err2); err != nil {
						d.Fatalf(t, "%v", err)
					}
					for range count {
						times = append(times, ms*1e3)
					}
				}
				return say(p.Review(times))
			case "made":
				var why string
				d.MaybeScanArgs(t, "none", &why)
				var none error
				if why != "" {
					none = errors.New(why)
				}
				return say(p.Made(d.HasArg("delayed"), none))
			}
			d.Fatalf(t, "no command %s", d.Cmd)
			return ""
		})
	})
}

func say(d Decision) string {
	if d.Make {
		return "make a plan\n"
	}
	what := "plain buckets"
	if d.Planned {
		what = "the plan"
	}
	s := fmt.Sprintf("%s, %d iterations\n", what, d.Next)
	if d.Why != "" {
		s += d.Why + "\n"
	}
	return s
}

// Of 1, 2, 3: the mean is 2, the deviation 1; t for two degrees of freedom is 4.3027, by
// the root of 3.
func TestInterval(t *testing.T) {
	mean, half := Interval([]float64{1, 2, 3})
	if mean != 2 || math.Abs(half-4.3027/math.Sqrt(3)) > 1e-4 {
		t.Errorf("%v ± %v", mean, half)
	}
}

// Whatever the times are, each answer leads to another: at least one iteration, no plan
// before it was made, and as many turns of both.
func TestAlwaysGoesOn(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := Config{
			Warm: rapid.IntRange(0, 3).Draw(t, "warm"), Profile: rapid.IntRange(1, 3).Draw(t, "profile"), Settle: rapid.IntRange(0, 3).Draw(t, "settle"),
			Window: rapid.IntRange(1, 4).Draw(t, "window"), Turns: rapid.IntRange(2, 5).Draw(t, "turns"), Rest: rapid.IntRange(1, 20).Draw(t, "rest"), Drift: 0.1,
		}
		p := New(c)
		n, made := p.First(), false
		turns := map[bool]int{}
		for range 60 {
			times := rapid.SliceOfN(rapid.Float64Range(0, 1e6), n, n).Draw(t, "times")
			compared := p.state == comparing
			if compared {
				turns[p.planned]++
			}
			d := p.Review(times)
			if d.Make {
				var none error
				if made = rapid.Bool().Draw(t, "made"); !made {
					none = errors.New("none")
				}
				clear(turns)
				d = p.Made(rapid.Bool().Draw(t, "delayed"), none)
			}
			if d.Next < 1 || d.Make || d.Planned && !made || d.Planned != p.planned {
				t.Fatalf("%+v", d)
			}
			if compared && p.state != comparing && (turns[true] != c.Turns || turns[false] != c.Turns) {
				t.Fatalf("turns %v, want %d each", turns, c.Turns)
			}
			n = d.Next
		}
	})
}
