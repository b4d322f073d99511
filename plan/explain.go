package plan

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"

	"weft/internal/fault"
	"weft/job"
)

// Explanation is a plan made readable: what [Explain] prints, for programs.
type Explanation struct {
	Policy      string            `json:"policy"`
	Job         string            `json:"job,omitempty"` // empty: explained without its job
	Digest      string            `json:"digest"`
	Synchronous bool              `json:"synchronous"`
	Summary     []string          `json:"summary"` // sentences
	Links       []LinkExplanation `json:"links"`
	Notes       []string          `json:"notes,omitempty"`
}

// LinkExplanation is the program of one link.
type LinkExplanation struct {
	Link      string                `json:"link"`
	Window    string                `json:"window"`          // in words
	Elements  int64                 `json:"elements"`        // of gradients, that its transfers carry in a period
	Bytes     int64                 `json:"bytes,omitempty"` // of all its transfers; 0 without the job
	Transfers []TransferExplanation `json:"transfers"`
}

// TransferExplanation is one transfer.
type TransferExplanation struct {
	Position   int      `json:"position"`
	Kind       string   `json:"kind"`
	Bucket     *int     `json:"bucket"`          // null: one of the job's own collectives
	Tensors    int      `json:"tensors"`         // in the bucket, whole or in part
	Carries    string   `json:"carries"`         // the first and the last tensor, or the collective
	Elements   int64    `json:"elements"`        // of gradients
	Bytes      int64    `json:"bytes,omitempty"` // of gradients or the collective; 0: unknown, or without the job
	Iterations string   `json:"iterations"`      // whose gradients it carries, relative to the period: "0", "-2..-1"
	Gates      []string `json:"gates"`           // in words; none: the program's order alone
}

// Describe makes plan p for job j readable. Without the job, j nil, tensors,
// ops and collectives are numbers and bytes unknown. The error is that of rule
// 0, the plan is not well formed or for another job, or of generations that do
// not fill the period.
func Describe(p *Plan, j *job.Job) (*Explanation, error) {
	c := &checker{plan: p, whole: j}
	x := &Explanation{Policy: p.Policy, Digest: p.Digest(), Synchronous: p.Synchronous()}
	var err error
	if j == nil {
		err = p.validate()
	} else {
		x.Job = j.Name
		_, err = c.formed()
	}
	if err == nil {
		err = c.partitioned()
	}
	if err != nil {
		return nil, err
	}
	x.Summary, x.Notes = c.summary(), slices.Concat(p.Notes, c.notes)
	for l := range p.Programs {
		x.Links = append(x.Links, c.explainLink(l))
	}
	return x, nil
}

func (c *checker) summary() []string {
	p := c.plan
	out := []string{"Synchronous: the gradients of an iteration are applied before the next reads the parameters."}
	if !p.Synchronous() {
		out[0] = fmt.Sprintf("Delayed: %s in %s. An update is applied up to %s late; its oldest gradient has staleness %d.",
			times(len(p.Generations), "update"), times(p.Period, "iteration"), times(p.MaxDelay, "iteration"), p.MaxStaleness)
	}
	const shown = 6
	for i := range p.Updates {
		if i == shown {
			out = append(out, fmt.Sprintf("And %d updates more.", len(p.Updates)-shown))
			break
		}
		out = append(out, c.explainUpdate(&p.Updates[i]))
	}
	var reordered []string
	for l, ids := range p.Order {
		if ids != nil {
			reordered = append(reordered, c.lane(l))
		}
	}
	if len(reordered) > 0 {
		out = append(out, "Computation is reordered on "+strings.Join(reordered, ", ")+".")
	}
	if p.Copies {
		out = append(out, "Gradients are copied into and out of buckets, as recorded.")
	} else {
		out = append(out, "Gradients are reduced where they lie, without copies.")
	}
	memory := "It takes " + times(p.Buffers, "gradient buffer")
	if c.job != nil {
		memory += fmt.Sprintf(" of %d bytes", c.job.Bytes())
	}
	return append(out, memory+".")
}

func (c *checker) explainUpdate(u *Update) string {
	what := "all tensors"
	if u.Tensors != nil {
		what = times(len(u.Tensors), "tensor") + ", " + c.names(u.Tensors)
	}
	gradients := "The gradients of " + c.plan.Generations[u.Generation].iterations()
	if u.At == AtRead {
		return fmt.Sprintf("%s update each tensor where iteration %d first reads it: %s.", gradients, u.Iteration+1, what)
	}
	return fmt.Sprintf("%s update %s at the step of iteration %d, once all are reduced.", gradients, what, u.Iteration)
}

// names gives the first and the last of tensors.
func (c *checker) names(tensors []job.TensorID) string {
	first := c.tensor(tensors[0])
	if len(tensors) == 1 {
		return first
	}
	return first + " .. " + c.tensor(tensors[len(tensors)-1])
}

func (c *checker) tensor(k job.TensorID) string {
	if c.job == nil {
		return fmt.Sprintf("tensor %d", k)
	}
	return fault.Short(c.job.Tensors[k].Name)
}

func (c *checker) lane(l int) string {
	if c.job == nil {
		return fmt.Sprintf("lane %d", l)
	}
	return fault.Short(c.job.Lanes[l].Name)
}

func times(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func (w Window) words() string {
	var limits []string
	if w.Transfers > 0 {
		limits = append(limits, times(w.Transfers, "transfer"))
	}
	if w.Bytes > 0 {
		limits = append(limits, fmt.Sprintf("%d bytes", w.Bytes))
	}
	switch {
	case w.Transfers == 1:
		return "one transfer at a time"
	case len(limits) == 0:
		return "any number in flight"
	}
	return "up to " + strings.Join(limits, " and ") + " in flight"
}

func (c *checker) explainLink(l int) LinkExplanation {
	x := &c.plan.Programs[l]
	out := LinkExplanation{Link: x.Link, Window: x.Window.words(), Transfers: []TransferExplanation{}}
	for i := range x.Transfers {
		t := c.explainTransfer(slot{l, i})
		out.Elements += t.Elements
		out.Bytes += t.Bytes
		out.Transfers = append(out.Transfers, t)
	}
	return out
}

func (c *checker) explainTransfer(s slot) TransferExplanation {
	p, t := c.plan, c.at(s)
	out := TransferExplanation{Position: s.index, Kind: t.Kind.String(), Gates: []string{}}
	if t.Bucket >= 0 {
		b := &p.Buckets[t.Bucket]
		tensors := b.Tensors()
		n, r := divide(t.Generation, len(p.Generations))
		g := p.Generations[r]
		g.First += n * p.Period
		out.Bucket, out.Tensors, out.Carries, out.Iterations = &t.Bucket, len(tensors), c.names(tensors), g.numbers()
		for _, x := range b.Slices {
			out.Elements += x.Length
		}
		if c.job != nil {
			out.Bytes = b.Bytes(c.job)
		}
	} else {
		out.Carries, out.Iterations = fmt.Sprintf("collective %d", t.Collective), fmt.Sprint(t.Iteration)
		out.Gates = append(out.Gates, "inputs")
		if c.job != nil {
			x := &c.job.Collectives[t.Collective]
			out.Carries, out.Bytes = fault.Short(x.Name), x.Bytes
		}
	}
	for _, g := range t.Gates {
		out.Gates = append(out.Gates, c.explainGate(g))
	}
	return out
}

func (c *checker) explainGate(g Gate) string {
	switch g.Kind {
	case OpDone:
		if c.job == nil {
			return fmt.Sprintf("op %d of iteration %d", g.Op, g.Iteration)
		}
		return fmt.Sprintf("%s of iteration %d", c.op(c.renumber[g.Op]), g.Iteration)
	case TransferDone:
		return fmt.Sprintf("%s/%d done", fault.Short(c.plan.Programs[g.Link].Link), g.Transfer)
	case Boundary:
		return fmt.Sprintf("end of iteration %d", g.Iteration)
	case NotBefore:
		return fmt.Sprintf("%g us into backward", g.Time)
	}
	return "gradients"
}

// pageWidth is the width that text keeps to where it can.
const pageWidth = 80

// Explain prints plan p for job j, which may be nil as for [Describe]: in words,
// then a table for each link.
func Explain(w io.Writer, p *Plan, j *job.Job) error {
	x, err := Describe(p, j)
	if err != nil {
		return err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "Plan %q", x.Policy)
	unit := "elements"
	if j != nil {
		fmt.Fprintf(&b, " for job %q", x.Job)
		unit = "bytes"
	}
	fmt.Fprintf(&b, "\n%s\n\n", x.Digest)
	for _, s := range x.Summary {
		paragraph(&b, "", s)
	}
	for i := range x.Links {
		l := &x.Links[i]
		size := l.Elements
		if j != nil {
			size = l.Bytes
		}
		fmt.Fprintf(&b, "\nLink %s: %s a period, %d %s, %s\n", l.Link, times(len(l.Transfers), "transfer"), size, unit, l.Window)
		if len(l.Transfers) > 0 {
			b.WriteString(l.table(unit) + "\n")
		}
	}
	if len(x.Notes) > 0 {
		b.WriteByte('\n')
	}
	for _, n := range x.Notes {
		paragraph(&b, "note: ", n)
	}
	_, err = io.WriteString(w, b.String())
	return err
}

// paragraph wraps s to the page, later lines as deep as the lead.
func paragraph(b *strings.Builder, lead, s string) {
	lines := strings.ReplaceAll(text.WrapSoft(s, pageWidth-len(lead)), "\n", "\n"+strings.Repeat(" ", len(lead)))
	for line := range strings.Lines(lead + lines) {
		b.WriteString(strings.TrimRight(line, " \n") + "\n")
	}
}

// table shows the transfers; unit is that of their sizes, bytes or elements.
func (l *LinkExplanation) table(unit string) string {
	t := table.NewWriter()
	t.SetStyle(table.Style{
		Box:     table.BoxStyle{MiddleHorizontal: "─", MiddleSeparator: "──", MiddleVertical: "  "},
		Format:  table.FormatOptions{Header: text.FormatDefault},
		Options: table.Options{SeparateHeader: true, SeparateColumns: true},
	})
	t.SuppressTrailingSpaces()
	head := table.Row{"#", "kind", "bucket", "tensors", unit, "iter.", "released by"}
	t.AppendHeader(head)
	widths := make([]int, len(head))
	for i := range head {
		widths[i] = len(fmt.Sprint(head[i]))
	}
	for _, x := range l.Transfers {
		bucket, carries := "-", x.Carries
		if x.Bucket != nil {
			bucket = fmt.Sprint(*x.Bucket)
		}
		if x.Tensors > 1 {
			carries = fmt.Sprintf("%d: %s", x.Tensors, strings.Replace(x.Carries, " .. ", "\n.. ", 1))
		}
		gates := strings.Join(x.Gates, ", ")
		if gates == "" {
			gates = "its turn"
		}
		size := x.Elements
		if unit == "bytes" {
			size = x.Bytes
		}
		row := []string{fmt.Sprint(x.Position), x.Kind, bucket, carries, fmt.Sprint(size), x.Iterations, gates}
		cells := make(table.Row, len(row))
		for i, s := range row {
			cells[i], widths[i] = s, max(widths[i], text.LongestLineLen(s))
		}
		t.AppendRow(cells)
	}
	// What the other columns and the gaps leave of the page is for the gates and
	// the tensors.
	const gates, tensors, leastTensors, mostGates = 6, 3, 12, 18
	widths[gates] = min(widths[gates], mostGates)
	room := pageWidth + widths[tensors] - 2*(len(head)-1)
	for _, n := range widths {
		room -= n
	}
	configs := []table.ColumnConfig{
		{Number: tensors + 1, WidthMax: max(room, leastTensors), WidthMaxEnforcer: text.WrapText},
		{Number: gates + 1, WidthMax: widths[gates], WidthMaxEnforcer: text.WrapSoft},
	}
	for _, number := range []int{0, 2, 4, 5} {
		configs = append(configs, table.ColumnConfig{Number: number + 1, Align: text.AlignRight, AlignHeader: text.AlignRight})
	}
	t.SetColumnConfigs(configs)
	return t.Render()
}
