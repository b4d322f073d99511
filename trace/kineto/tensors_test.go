package kineto

import (
	"strings"
	"testing"
)

func TestReadTensors(t *testing.T) {
	list, err := ReadTensors(strings.NewReader("# ours\nw 12 torch.float32\n\nb  3\tbfloat16\n"), "f")
	if err != nil || len(list) != 2 || list[0].Name != "w" || list[0].Elements != 12 || list[1].DType.Bytes() != 2 {
		t.Errorf("got %v, %v", list, err)
	}
	for text, want := range map[string]string{
		"":                         "f: no tensors",
		"w 12":                     `f: line 1: 2 words instead of three: name, elements, dtype`,
		"w 1 float32\n\nv x int8":  `f: line 3: "x" is not a number of elements`,
		"w 0 float32":              `f: line 1: "0" is not a number of elements`,
		"w 1 float31":              `f: line 1: unknown element type "float31"`,
		"w 1 int8\nw 1 int8":       `f: line 2: "w" is in line 1 already`,
		strings.Repeat("x", 1<<17): "f: bufio.Scanner: token too long",
	} {
		if _, err := ReadTensors(strings.NewReader(text), "f"); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%.20q: got %v, want %s", text, err, want)
		}
	}
}
