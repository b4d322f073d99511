package cli

import (
	"encoding/csv"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strconv"
)

// CSV writes the table of that key as comma-separated values under the JSON
// names of its columns, numbers as JSON has them. What is not there is empty.
// Rows that stand apart are left out.
func (r *Report) CSV(w io.Writer, key string) error {
	at := slices.IndexFunc(r.Tables, func(t Table) bool { return t.Key == key })
	if at < 0 {
		return fmt.Errorf("the report has no table %q", key)
	}
	t := &r.Tables[at]
	out := csv.NewWriter(w)
	line := make([]string, len(t.Columns))
	for i, c := range t.Columns {
		line[i] = c.Key
	}
	out.Write(line) // the error stays until Flush
	for _, row := range t.Rows {
		if row.Key != "" {
			continue
		}
		for i, v := range row.Cells {
			line[i] = field(v)
		}
		out.Write(line)
	}
	out.Flush()
	return out.Error()
}

// field is a value as JSON has it, words without quotes.
func field(v any) string {
	r := reflect.ValueOf(v)
	if r.Kind() == reflect.Float64 {
		if v = number(v, r.Float()); v != nil {
			return strconv.FormatFloat(v.(float64), 'f', -1, 64)
		}
	} else if r.CanInt() {
		return strconv.FormatInt(r.Int(), 10)
	}
	if v == nil {
		return ""
	}
	return fmt.Sprint(v)
}
