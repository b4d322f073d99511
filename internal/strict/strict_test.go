package strict

import (
	"errors"
	"strings"
	"testing"

	"weft/internal/fault"
)

// shape is a circle, which has a radius, or else a polygon, which has corners.
type shape struct {
	round   bool
	radius  float64
	corners []int32
	label   string
}

func (s *shape) circle() bool  { return s.round }
func (s *shape) polygon() bool { return !s.round }

type drawing struct{ shapes []shape }

var (
	drawingMembers = []Member[drawing]{
		Version[drawing](3),
		Objects("shapes", true, 4, shape{label: "none"}, shapeMembers, func(d *drawing) *[]shape { return &d.shapes }),
	}
	shapeMembers = []Member[shape]{
		ID[shape](),
		Bool("round", false, func(s *shape) *bool { return &s.round }),
		Float("radius", true, func(s *shape) *float64 { return &s.radius }).Where((*shape).circle),
		Numbers("corners", true, func(s *shape) *[]int32 { return &s.corners }).Where((*shape).polygon),
		Text("label", false, func(s *shape) *string { return &s.label }),
	}
)

func TestRead(t *testing.T) {
	for _, c := range []struct{ shapes, want string }{
		{`{"round": true, "radius": 2}`, ""},
		{`{"radius": 2, "round": true}`, ""}, // in any order
		{`{"corners": []}`, ""},
		{"{\"label\": \"a\",\n\"corners\": [],\n\"radius\": 2}", `drawing: line 3: shapes[0]: "radius" does not belong here`},
		{"{\"corners\": []},\n{\"round\": true,\n\"label\": \"b\"}", `drawing: line 4: shapes[1]: "radius" is missing`},
		{`{"round": 1}`, "drawing: line 3: shapes[0].round: true or false expected, not a number"},
		{`{"corners": [1, 2.5]}`, "drawing: line 3: shapes[0].corners[1]: 2.5 is not a whole number in range"},
		{`{"corners": [4294967296]}`, "drawing: line 3: shapes[0].corners[0]: 4294967296 is not a whole number in range"},
		{`{"corners": []}, {"id": 1, "corners": []}`, ""},
		{`{"corners": []}, {"id": 0, "corners": []}`, "drawing: line 3: shapes[1].id: duplicate id 0; this is element 1, and an id is the position in the list"},
		{strings.Repeat(`{"corners": []}, `, 4) + `{}`, "drawing: line 3: shapes: more than 4 elements"},
		// What validation finds gets the line of the nearest element that starts one.
		{"{\"corners\": []},\n{\"corners\": [], \"label\": \"bad\"}", "drawing: line 4: shapes[1].label: bad"},
		{`{"corners": [], "label": "bad"}`, "drawing: line 3: shapes[0].label: bad"},
	} {
		var d drawing
		err := Read(strings.NewReader("{\"version\": 3,\n\"shapes\": [\n"+c.shapes+"]}\n"), "drawing", drawingMembers, &d, func() error {
			for i, s := range d.shapes {
				switch s.label {
				case "bad":
					return fault.New("drawing", "shapes["+string(rune('0'+i))+"].label", "bad")
				case "none", "a", "b":
				default:
					return errors.New("an element does not begin as it should")
				}
			}
			return nil
		})
		if got := ""; err != nil {
			if got = err.Error(); got != c.want {
				t.Errorf("%s:\n got %s\nwant %s", c.shapes, got, c.want)
			}
		} else if c.want != "" {
			t.Errorf("%s: no error, want %s", c.shapes, c.want)
		}
	}
}
