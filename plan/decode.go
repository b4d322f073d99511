package plan

import (
	"io"
	"math"
	"slices"

	"weft/cluster"
	"weft/internal/near"
	"weft/internal/strict"
	"weft/job"
)

// Read reads a plan that [Write] wrote, or that was written by hand
// (docs/plan.md). It refuses unknown, duplicate and missing members and
// references out of range; errors give line and field. That the plan fits a job
// is for [Check] to tell.
func Read(r io.Reader) (*Plan, error) {
	p := &Plan{}
	if err := strict.Read(r, "plan", planMembers, p, p.validate); err != nil {
		return nil, err
	}
	return p, nil
}

// The format, member by member. docs/plan.md describes it.
var (
	planMembers = []strict.Member[Plan]{
		strict.Version[Plan](Version),
		strict.Text("policy", false, func(p *Plan) *string { return &p.Policy }),
		strict.Text("tensors_fingerprint", false, func(p *Plan) *string { return &p.Tensors }),
		strict.Text("ops_fingerprint", false, func(p *Plan) *string { return &p.Ops }),
		strict.Whole("period", true, func(p *Plan) *int { return &p.Period }),
		strict.Bool("copies", false, func(p *Plan) *bool { return &p.Copies }),
		strict.Whole("buffers", true, func(p *Plan) *int { return &p.Buffers }),
		strict.Whole("max_delay", false, func(p *Plan) *int { return &p.MaxDelay }),
		strict.Whole("max_staleness", false, func(p *Plan) *int { return &p.MaxStaleness }),
		strict.Float("update_rate", true, func(p *Plan) *float64 { return &p.UpdateRate }),
		strict.Texts("notes", false, maxSlices, func(p *Plan) *[]string { return &p.Notes }),
		strict.Objects("generations", true, maxPeriod, Generation{}, generationMembers, func(p *Plan) *[]Generation { return &p.Generations }),
		strict.Objects("updates", true, maxSlices, Update{}, updateMembers, func(p *Plan) *[]Update { return &p.Updates }),
		strict.Field("order", false, func(r *strict.Reader, p *Plan) error {
			return strict.List(r, maxSlices, &p.Order, func(ids *[]job.OpID) error {
				if r.Null() {
					return nil
				}
				return r.Numbers(ids)
			})
		}),
		strict.Objects("buckets", true, maxSlices, Bucket{}, bucketMembers, func(p *Plan) *[]Bucket { return &p.Buckets }),
		strict.Objects("programs", true, maxSlices, Program{}, programMembers, func(p *Plan) *[]Program { return &p.Programs }),
	}
	generationMembers = []strict.Member[Generation]{
		strict.Whole("first", true, func(g *Generation) *int { return &g.First }),
		strict.Whole("length", true, func(g *Generation) *int { return &g.Length }),
	}
	updateMembers = []strict.Member[Update]{
		strict.Whole("generation", true, func(u *Update) *int { return &u.Generation }),
		strict.Word("at", true, parsePoint, func(u *Update) *Point { return &u.At }),
		strict.Whole("iteration", true, func(u *Update) *int { return &u.Iteration }),
		strict.Numbers("tensors", false, func(u *Update) *[]job.TensorID { return &u.Tensors }),
	}
	bucketMembers = []strict.Member[Bucket]{
		strict.Objects("slices", true, maxSlices, Slice{}, sliceMembers, func(b *Bucket) *[]Slice { return &b.Slices }),
	}
	sliceMembers = []strict.Member[Slice]{
		strict.Whole("tensor", true, func(s *Slice) *job.TensorID { return &s.Tensor }),
		strict.Whole("offset", true, func(s *Slice) *int64 { return &s.Offset }),
		strict.Whole("length", true, func(s *Slice) *int64 { return &s.Length }),
	}
	programMembers = []strict.Member[Program]{
		strict.Text("link", true, func(x *Program) *string { return &x.Link }),
		strict.Field("window", false, func(r *strict.Reader, x *Program) error { return strict.Object(r, windowMembers, &x.Window) }),
		strict.Field("transfers", true, func(r *strict.Reader, x *Program) error {
			return strict.List(r, maxSlices, &x.Transfers, func(t *Transfer) error { return t.read(r) })
		}),
	}
	windowMembers = []strict.Member[Window]{
		strict.Whole("transfers", false, func(w *Window) *int { return &w.Transfers }),
		strict.Whole("bytes", false, func(w *Window) *int64 { return &w.Bytes }),
	}
	transferMembers = []strict.Member[Transfer]{
		strict.Word("kind", true, cluster.ParseKind, func(t *Transfer) *cluster.Kind { return &t.Kind }),
		strict.Whole("bucket", true, func(t *Transfer) *int { return &t.Bucket }).Where((*Transfer).ofGradients),
		strict.Whole("generation", true, func(t *Transfer) *int { return &t.Generation }).Where((*Transfer).ofGradients),
		strict.Whole("collective", true, func(t *Transfer) *int { return &t.Collective }).Where((*Transfer).ofJob),
		strict.Whole("iteration", true, func(t *Transfer) *int { return &t.Iteration }).Where((*Transfer).ofJob),
		strict.Objects("gates", false, maxSlices, Gate{}, gateMembers, func(t *Transfer) *[]Gate { return &t.Gates }),
	}
	gateMembers = []strict.Member[Gate]{
		strict.Word("kind", true, parseGate, func(g *Gate) *GateKind { return &g.Kind }),
		strict.Whole("op", true, func(g *Gate) *job.OpID { return &g.Op }).Where(isKind(OpDone)),
		strict.Whole("iteration", true, func(g *Gate) *int { return &g.Iteration }).Where(isKind(OpDone, Boundary)),
		strict.Whole("link", true, func(g *Gate) *int { return &g.Link }).Where(isKind(TransferDone)),
		strict.Whole("transfer", true, func(g *Gate) *int { return &g.Transfer }).Where(isKind(TransferDone)),
		strict.Float("time", true, func(g *Gate) *float64 { return &g.Time }).Where(isKind(NotBefore)),
	}
)

// absent stands for the position of a bucket or collective that the file does
// not give.
const absent = math.MinInt

// While a transfer is read, one without either lacks its bucket.
func (t *Transfer) ofJob() bool       { return t.Bucket == absent && t.Collective != absent }
func (t *Transfer) ofGradients() bool { return !t.ofJob() }

func (t *Transfer) read(r *strict.Reader) error {
	t.Bucket, t.Collective = absent, absent
	if err := strict.Object(r, transferMembers, t); err != nil {
		return err
	}
	switch {
	case t.ofJob():
		t.Bucket = -1
	case t.Bucket < 0:
		return r.Faultf("negative bucket %d", t.Bucket)
	default:
		t.Collective = 0
	}
	return nil
}

func isKind(kinds ...GateKind) func(*Gate) bool {
	return func(g *Gate) bool { return slices.Contains(kinds, g.Kind) }
}

func parseGate(s string) (GateKind, error) { return near.Parse[GateKind]("gate", s, gateNames) }
func parsePoint(s string) (Point, error)   { return near.Parse[Point]("point of update", s, pointNames) }
