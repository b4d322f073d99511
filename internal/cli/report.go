package cli

import (
	"fmt"
	"io"
	"math"
	"reflect"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
)

// width of a page: text keeps to it where it can.
const width = 80

// Report is what a command has to say: facts, tables, notes. One value is
// printed as text, for people, or as JSON, for programs.
type Report struct {
	Facts  []Fact
	Tables []Table
	Notes  []string
}

// Fact is one line: its label, its JSON name, its value.
type Fact struct {
	Label, Key string
	Value      any
}

// Table is rows under columns. Key is its JSON name, "" where all rows stand apart,
// or where it is for people alone; Data, one that is for programs alone.
type Table struct {
	Title, Key string
	Data       bool
	Columns    []Column
	Rows       []Row
}

// Column is a column's head (a line break starts a new line; the last names the
// unit) and its JSON name, which ends in the unit.
type Column struct{ Head, Key string }

// Row is one cell a column. A nil cell is a dash and null. A row with a key,
// which sums the others up or is none of their kind, is in JSON no element of
// the list but a member of that name beside it, with the cells that it has but
// the first.
type Row struct {
	Cells []any
	Key   string
	Style Style
}

// Style sets a row apart on a colour terminal.
type Style uint8

const (
	Plain Style = iota
	Best        // what the reader came for
	Faint       // a reference, not a candidate
)

// The kinds of cell that have a unit: JSON holds the number, in the unit of
// weft's files, and text a number that reads well in the unit of the head.
type (
	Time    float64 // microseconds; milliseconds in text
	Micros  float64 // microseconds, in text too
	Bytes   int64   // bytes; megabytes (1e6 bytes) in text
	Ratio   float64 // two decimals
	Percent float64 // a fraction; in text in percent, one decimal
	Share   float64 // likewise, two decimals
	Rate    float64 // bytes a microsecond: megabytes a second
	Count   float64 // as many digits as it needs, at most two decimals
)

func (v Time) String() string    { return decimal(float64(v)/1000, 2) }
func (v Micros) String() string  { return decimal(float64(v), 1) }
func (v Bytes) String() string   { return decimal(float64(v)/1e6, 2) }
func (v Ratio) String() string   { return decimal(float64(v), 2) }
func (v Percent) String() string { return decimal(100*float64(v), 1) }
func (v Share) String() string   { return decimal(100*float64(v), 2) }
func (v Rate) String() string    { return decimal(float64(v), 1) }
func (v Count) String() string {
	return strconv.FormatFloat(math.Round(100*float64(v))/100, 'f', -1, 64)
}

// decimal writes v with so many digits after the point, and without a negative zero.
func decimal(v float64, digits int) string {
	s := strconv.FormatFloat(v, 'f', digits, 64)
	if strings.Trim(s, "-0.") == "" {
		return strings.TrimPrefix(s, "-")
	}
	return s
}

// Print writes the report to out, as JSON or as text.
func (c *Console) Print(r *Report, asJSON bool) error {
	if asJSON {
		return r.writeJSON(c.Out)
	}
	return r.writeText(c.Out, c.Color)
}

func (r *Report) writeText(w io.Writer, color bool) error {
	var parts []string
	if len(r.Facts) > 0 {
		parts = append(parts, r.facts())
	}
	for i := range r.Tables {
		if !r.Tables[i].Data {
			parts = append(parts, r.Tables[i].text(color))
		}
	}
	if len(r.Notes) > 0 {
		var notes strings.Builder
		for _, n := range r.Notes {
			notes.WriteString("note: " + wrap(n, width-6, "      "))
		}
		parts = append(parts, notes.String())
	}
	_, err := io.WriteString(w, strings.Join(parts, "\n"))
	return err
}

func (r *Report) facts() string {
	labels := 0
	for _, f := range r.Facts {
		labels = max(labels, len(f.Label))
	}
	var b strings.Builder
	for _, f := range r.Facts {
		b.WriteString(f.Label + strings.Repeat(" ", labels-len(f.Label)+2))
		b.WriteString(wrap(cell(f.Value), width-labels-2, strings.Repeat(" ", labels+2)))
	}
	return b.String()
}

// style has no borders: a rule under the head, and a gap between columns.
func style(gap int) table.Style {
	return table.Style{
		Box: table.BoxStyle{
			MiddleHorizontal: "─",
			MiddleSeparator:  strings.Repeat("─", gap),
			MiddleVertical:   strings.Repeat(" ", gap),
		},
		Format:  table.FormatOptions{Header: text.FormatDefault, HeaderVAlign: text.VAlignBottom},
		Options: table.Options{SeparateHeader: true, SeparateColumns: true},
	}
}

func (t *Table) text(color bool) string {
	tw := table.NewWriter()
	tw.SetStyle(style(2))
	tw.SuppressTrailingSpaces()

	head := make(table.Row, len(t.Columns))
	configs := make([]table.ColumnConfig, len(t.Columns))
	for i, c := range t.Columns {
		head[i] = c.Head
		configs[i] = table.ColumnConfig{Number: i + 1, Align: text.AlignRight, AlignHeader: text.AlignRight}
		if t.isText(i) {
			configs[i].Align, configs[i].AlignHeader = text.AlignLeft, text.AlignLeft
		}
	}
	tw.AppendHeader(head)
	tw.SetColumnConfigs(configs)
	for _, r := range t.Rows {
		row := make(table.Row, len(r.Cells))
		for i, v := range r.Cells {
			row[i] = paint(cell(v), r.Style, color)
		}
		tw.AppendRow(row)
	}
	out := tw.Render() + "\n"
	if text.LongestLineLen(out) > width {
		tw.SetStyle(style(1))
		out = tw.Render() + "\n"
	}
	if over := text.LongestLineLen(out) - width; over > 0 {
		t.shrink(configs, over)
		tw.SetColumnConfigs(configs)
		out = tw.Render() + "\n"
	}
	if t.Title != "" {
		out = t.Title + "\n" + out
	}
	return out
}

// shrink takes so many places from the columns of words, the widest first, and
// wraps them.
func (t *Table) shrink(configs []table.ColumnConfig, places int) {
	widths := make([]int, len(t.Columns))
	for i := range t.Columns {
		for _, r := range t.Rows {
			if v, ok := r.Cells[i].(string); ok {
				widths[i] = max(widths[i], text.StringWidth(cell(v)))
			}
		}
	}
	for ; places > 0; places-- {
		widest := 0
		for i, w := range widths {
			if w > widths[widest] {
				widest = i
			}
		}
		if widths[widest] <= 10 {
			return // there is no room to read in
		}
		widths[widest]--
		configs[widest].WidthMax = widths[widest]
		configs[widest].WidthMaxEnforcer = text.WrapSoft
	}
}

// isText reports whether a column holds words: the first cell that is there tells.
func (t *Table) isText(column int) bool {
	for _, r := range t.Rows {
		if v := r.Cells[column]; v != nil {
			_, ok := v.(string)
			return ok
		}
	}
	return false
}

// cell is a value as text. Line breaks in it would be other cells: they are
// spelled out.
func cell(v any) string {
	if v == nil {
		return "-"
	}
	return Printable(fmt.Sprint(v))
}

var paints = map[Style]string{Best: "\x1b[1m", Faint: "\x1b[2m"}

func paint(s string, style Style, color bool) string {
	if code := paints[style]; color && code != "" {
		return code + s + "\x1b[0m"
	}
	return s
}

// Wrap breaks s into the lines of a page, the first behind first and the others
// behind rest.
func Wrap(s, first, rest string) string {
	return first + wrap(s, width-max(len(first), len(rest)), rest)
}

// wrap breaks s at spaces into printable lines of at most width, each but the first
// behind indent (not counted), each with its line end. A longer word has its
// own line.
func wrap(s string, width int, indent string) string {
	var b strings.Builder
	used := 0
	for i, word := range strings.Fields(s) {
		word = Printable(word)
		switch n := text.StringWidthWithoutEscSequences(word); {
		case i == 0:
			used = n
		case used+1+n > width:
			b.WriteString("\n" + indent)
			used = n
		default:
			b.WriteByte(' ')
			used += 1 + n
		}
		b.WriteString(word)
	}
	b.WriteByte('\n')
	return b.String()
}

// writeJSON writes one object: the facts, then a list of objects a table, then
// the notes.
func (r *Report) writeJSON(w io.Writer) error {
	obj := object{}
	for _, f := range r.Facts {
		obj.add(f.Key, f.Value)
	}
	for _, t := range r.Tables {
		rows, apart := []object{}, object{}
		for _, row := range t.Rows {
			var o object
			for k, c := range t.Columns {
				if row.Key == "" || k > 0 && row.Cells[k] != nil {
					o.add(c.Key, row.Cells[k])
				}
			}
			if row.Key == "" {
				rows = append(rows, o)
			} else {
				apart.add(row.Key, o)
			}
		}
		if t.Key != "" {
			obj.add(t.Key, rows)
		}
		obj = append(obj, apart...)
	}
	obj.add("notes", append([]string{}, r.Notes...))
	text, err := json.Marshal(obj, jsontext.WithIndent("  "), jsontext.AllowInvalidUTF8(true))
	if err != nil {
		return err
	}
	_, err = w.Write(append(text, '\n')) // an error says where, and nothing of JSON
	return err
}

// object is a JSON object in the order of its members.
type object []member

type member struct {
	name  string
	value any
}

func (o *object) add(name string, v any) {
	if r := reflect.ValueOf(v); r.Kind() == reflect.Float64 {
		v = number(v, r.Float())
	}
	*o = append(*o, member{name, v})
}

// number is v, which is x, without the digits that only rounding made: times to
// the nanosecond, other numbers to six decimals. JSON has neither NaN nor
// infinities.
func number(v any, x float64) any {
	if math.IsNaN(x) || math.IsInf(x, 0) {
		return nil
	}
	scale := 1e6
	switch v.(type) {
	case Time, Micros:
		scale = 1e3
	}
	return math.Round(x*scale)/scale + 0 // -0 + 0 is 0
}

// MarshalJSONTo writes the members in order.
func (o object) MarshalJSONTo(enc *jsontext.Encoder) error {
	if err := enc.WriteToken(jsontext.BeginObject); err != nil {
		return err
	}
	for _, m := range o {
		if err := enc.WriteToken(jsontext.String(m.name)); err != nil {
			return err
		}
		if err := json.MarshalEncode(enc, m.value); err != nil {
			return err
		}
	}
	return enc.WriteToken(jsontext.EndObject)
}
