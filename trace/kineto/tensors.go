package kineto

import (
	"bufio"
	"fmt"
	"io"
	"strconv"
	"strings"

	"weft/job"
)

// ReadTensors reads a tensors file: a line for each parameter, in the order of
// named_parameters(), with name, elements and dtype between spaces. Empty lines
// and lines that begin with # are skipped.
func ReadTensors(r io.Reader, file string) ([]TensorInfo, error) {
	var list []TensorInfo
	seen := map[string]int{}
	lines := bufio.NewScanner(r)
	for n := 1; lines.Scan(); n++ {
		fail := func(format string, args ...any) ([]TensorInfo, error) {
			return nil, fmt.Errorf("%s: line %d: %s", file, n, fmt.Sprintf(format, args...))
		}
		fields := strings.Fields(lines.Text())
		if len(fields) == 0 || fields[0][0] == '#' {
			continue
		}
		if len(fields) != 3 {
			return fail("%d words instead of three: name, elements, dtype", len(fields))
		}
		elements, err := strconv.ParseInt(fields[1], 10, 64)
		if err != nil || elements < 1 {
			return fail("%.80q is not a number of elements", fields[1])
		}
		dtype, err := job.ParseDType(fmt.Sprintf("%.80s", fields[2])) // which its message quotes
		if err != nil {
			return fail("%v", err)
		}
		if first := seen[fields[0]]; first > 0 {
			return fail("%.80q is in line %d already", fields[0], first)
		}
		seen[fields[0]] = n
		list = append(list, TensorInfo{Name: fields[0], Elements: elements, DType: dtype})
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("%s: no tensors", file)
	}
	return list, nil
}
