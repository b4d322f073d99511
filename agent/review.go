package agent

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"weft/agent/protocol"
	"weft/cluster"
	"weft/job"
	"weft/links"
	"weft/plan"
	"weft/profile"
)

// Review has workers measure their iterations, and report.
type Review struct {
	// After so many iterations of a model, which begins in plain buckets, workers first
	// report. Of these, Profile, before the last one, are measured op by op.
	After, Profile int
	Descent        bool // of those before these, they tell how the loss falls
	// Take gets what all hosts know, and says what is next. It is called on host 0, once a
	// review, and may take its time: the workers wait. The other hosts are told.
	Take func(Reviewed) (Decided, error)
}

// Decided is what a review leads to.
type Decided struct {
	protocol.Decision
	// Schedule is what is executed from the next hello on, where Change says that there is
	// to be one, and Review is counted from it; nil: plain buckets. Profile is as in
	// [Review].
	Schedule *Schedule
	Profile  int
}

// told is how host 0 tells the others what is decided.
type told struct {
	Decision protocol.Decision `json:"decision"`
	Plan     string            `json:"plan,omitzero"` // as in a file
	Limits   plan.Limits       `json:"limits,omitzero"`
	Costs    []cluster.Link    `json:"costs,omitzero"`
	Profile  int               `json:"profile,omitzero"`
}

// encode refuses a plan that the others would.
func (d *Decided) encode() ([]byte, error) {
	t := told{Decision: d.Decision, Profile: d.Profile}
	if s := d.Schedule; s != nil {
		if err := s.Check(); err != nil {
			return nil, err
		}
		var text strings.Builder
		if err := plan.Write(&text, s.Plan); err != nil {
			return nil, err
		}
		t.Plan, t.Limits, t.Costs = text.String(), s.Limits, s.Costs
	}
	return protocol.Encode(&t)
}

func (d *Decided) decode(b []byte) error {
	var t told
	if err := protocol.Decode(b, &t); err != nil {
		return err
	}
	*d = Decided{Decision: t.Decision, Profile: t.Profile}
	if t.Plan == "" {
		return nil
	}
	p, err := plan.Read(strings.NewReader(t.Plan))
	d.Schedule = &Schedule{Plan: p, Limits: t.Limits, Costs: t.Costs}
	return err
}

// Reviewed is what is known of the iterations since the last hello.
type Reviewed struct {
	First   bool           // no review of this model came before
	Hello   protocol.Hello // what all workers have said
	Tensors []job.Tensor   // their names, elements and types
	Plan    *plan.Plan     // that was executed
	Hosts   []profile.Host
	// Links are those of the rails, with their names, as host 0 has measured them after the
	// iterations of a profile.
	Links []cluster.Link
}

// Executable refuses a plan that these workers cannot execute as it is.
func (r *Reviewed) Executable(s *Schedule) error {
	_, note, err := s.layout(&r.Hello, false)
	if err == nil && note != "" {
		err = errors.New(note)
	}
	return err
}

// Mode is how the workers' tensors may be updated.
func (r *Reviewed) Mode() (job.Mode, error) { return mode(&r.Hello) }

// Reports are those of all ranks, in order.
func (r *Reviewed) Reports() (out []profile.Report) {
	for _, h := range r.Hosts {
		out = append(out, h.Reports...)
	}
	return out
}

// measured is what a host sees of the iterations that its workers measure. All
// methods take nil, for nobody measures.
type measured struct {
	bytes       []int64 // by bucket
	first, last int     // iterations, the last not included
	profile.Host
}

// reviewing is what reviews have decided of the session that begins next.
type reviewing struct {
	after, profile int  // of its first review: as in Review; after 0: there is none
	descent        bool // as in Review
	asked          bool // for the next hello, which is of the same model
	reviewed       bool // that model has been
}

// resume has the next session execute what was decided. If no review has asked for it,
// it is of another model, which begins as the first one did.
func (a *Agent) resume() {
	if a.Review == nil {
		return
	}
	if !a.reviewing.asked {
		a.Schedule, a.reviewing = nil, reviewing{after: a.Review.After, profile: a.Review.Profile, descent: a.Review.Descent}
	}
	a.reviewing.asked = false
}

// begin announces a review to the workers of a layout.
func (r *reviewing) begin(l *layout) *measured {
	if r.after == 0 || len(l.job.Tensors) == 0 {
		return nil
	}
	l.welcome.Review, l.welcome.Profile, l.welcome.Descent = r.after, r.profile, r.descent && r.profile > 0
	m := &measured{first: r.after - 1 - r.profile, last: r.after - 1}
	for b := range l.plan.Buckets {
		m.bytes = append(m.bytes, l.plan.Buckets[b].Bytes(l.job))
	}
	m.Passes = make([]profile.Pass, r.profile)
	return m
}

func (m *measured) sees(iteration int) bool {
	return m != nil && iteration >= m.first && iteration < m.last
}

// declared notes that a worker has declared a bucket.
func (m *measured) declared(iteration int, now time.Duration) {
	if !m.sees(iteration) {
		return
	}
	p, at := &m.Passes[iteration-m.first], micros(now)
	if p.First == 0 {
		p.First = at
	}
	p.Last = at
}

// transferred notes a transfer, whose times count from an origin.
func (m *measured) transferred(f *Flight, origin time.Time) {
	if m.sees(f.Iteration) && f.Bucket >= 0 {
		m.Transfers = append(m.Transfers, profile.Transfer{
			Iteration: f.Iteration - m.first, Bytes: m.bytes[f.Bucket], Start: micros(f.Start.Sub(origin)), End: micros(f.End.Sub(origin)),
		})
	}
}

func micros(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }

// review takes the reports of all workers of this host, and those of the others.
func (a *Agent) review(c *call, reports []profile.Report) {
	m := a.session.measured
	if m == nil {
		a.failf(a.Ranks[0], "rank %d reports what it has measured, and nobody has asked it to", a.Ranks[0])
		return
	}
	mine := m.Host
	mine.Reports = reports
	r := Reviewed{First: !a.reviewing.reviewed, Hello: a.session.hello, Tensors: a.session.job.Tensors, Plan: a.session.plan, Hosts: make([]profile.Host, max(1, len(a.hosts)))}
	ask := func() error { r.Hosts[0] = mine; return nil }
	if !a.alone() {
		for h := range r.Hosts {
			r.Hosts[h] = mine // of those who say the very same
		}
		ask = a.ask(numbered{Index: c.index, Call: c.Call, Host: &mine}, func(host int, other []byte) error {
			var theirs numbered
			err := a.otherCall(c, host, other, &theirs)
			switch {
			case err != nil:
				return err
			case theirs.Host == nil:
				return fmt.Errorf("host %d reviews without a report", host)
			}
			r.Hosts[host] = *theirs.Host
			return nil
		})
	}
	a.reviewing.reviewed = true
	op := a.agreements // of what is decided
	a.agreements++
	what, phase := c.makes()
	a.asking[op] = asked{a.now(), fmt.Sprintf("rank %d %s", a.Ranks[0], what), phase}
	var d Decided
	a.fly(a.session, func() (err error) {
		defer a.answered(op)
		if err := ask(); err != nil {
			return err
		}
		if len(m.Passes) > 0 && len(a.hosts) > 1 {
			if r.Links, err = links.Quick(a.ctx, aside(a.rails)); err != nil {
				return err
			}
		}
		var mine []byte
		if a.Ranks[0] == 0 {
			if d, err = a.Review.Take(r); err == nil {
				mine, err = d.encode()
			}
			if err != nil {
				return err
			}
		}
		if a.alone() {
			return nil
		}
		others, err := a.exchange(op, mine)
		if err == nil && a.Ranks[0] != 0 {
			err = d.decode(others[0])
		}
		return err
	}, func() {
		if d.Change {
			a.Schedule = d.Schedule
			a.reviewing = reviewing{after: d.Review, profile: d.Profile, descent: a.Review.Descent, asked: true, reviewed: true}
		}
		answer, err := protocol.Message{Kind: protocol.KindReturned, Index: c.index}.With(d.Decision)
		if err != nil {
			a.failf(-1, "%w", err)
			return
		}
		a.all(answer)
	})
}
