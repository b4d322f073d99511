package cluster

import (
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"

	"weft/internal/fault"
	"weft/internal/near"
)

// Version is the format version that [Write] stamps and [Read] requires.
const Version = 1

// maxFile bounds what Read takes in: a hundred times the file of a cluster of
// a hundred workers that all differ.
const maxFile = 1 << 20

// Read reads and validates a cluster file (docs/cluster.md). name stands for
// the file in errors, which say name:line:column and the field.
func Read(r io.Reader, name string) (*Cluster, error) {
	text, err := io.ReadAll(io.LimitReader(r, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if len(text) > maxFile {
		return nil, fmt.Errorf("%s: larger than %d bytes, the most that a cluster file may have", name, maxFile)
	}
	d := &decoder{file: name, places: map[string]string{}}
	root, err := d.parse(string(text))
	if err != nil {
		return nil, err
	}
	c := &Cluster{PerNode: 1, Scale: 1}
	if err := decode(d, root, "", fileFields, c); err != nil {
		return nil, err
	}
	for i := range c.Workers {
		w := &c.Workers[i]
		if math.IsNaN(w.Scale) {
			w.Scale = c.Scale
		}
		if math.IsNaN(w.Jitter) {
			w.Jitter = c.Jitter
		}
	}
	if s := c.Servers; s != nil && s.Count == 0 {
		s.Count = c.Nodes
	}
	if err := c.Validate(); err != nil {
		return nil, fault.Locate(err, d.position)
	}
	return c, nil
}

// decoder turns nodes of the file into values and remembers where they stood.
type decoder struct {
	file   string
	places map[string]string // path of a field -> file:line:column
}

// allowed are the tokens of the format: plain YAML without anchors, aliases,
// tags, merge keys and block scalars, none of which it needs, and which let a
// small file grow large.
var allowed = map[token.Type]bool{
	token.StringType: true, token.SingleQuoteType: true, token.DoubleQuoteType: true,
	token.IntegerType: true, token.BinaryIntegerType: true, token.OctetIntegerType: true, token.HexIntegerType: true,
	token.FloatType: true, token.InfinityType: true, token.NanType: true,
	token.BoolType: true, token.NullType: true, token.ImplicitNullType: true,
	token.SequenceEntryType: true, token.SequenceStartType: true, token.SequenceEndType: true,
	token.MappingStartType: true, token.MappingEndType: true, token.MappingValueType: true, token.CollectEntryType: true,
	token.CommentType: true, token.SpaceType: true, token.DocumentHeaderType: true, token.DocumentEndType: true,
	token.InvalidType: true, // the parser says why
}

// parse is the root node of a file of one document.
func (d *decoder) parse(text string) (ast.Node, error) {
	// The lexer and the parser are quadratic in merge keys, in depth and in the
	// keys of a mapping; the format has none of the first and few of the others.
	if i := strings.Index(text, "<<"); i >= 0 {
		return nil, fmt.Errorf("%s:%d: merge keys (<<) are not part of a cluster file", d.file, 1+strings.Count(text[:i], "\n"))
	}
	tokens := lexer.Tokenize(text)
	const deepest, strangest = 4, 100
	depth, line, opened, strange := 0, 0, 0, 0
	for i, t := range tokens {
		if !allowed[t.Type] {
			return nil, d.errorf(t, "", "%q: %v is not part of a cluster file", fault.Short(t.Value), t.Type)
		}
		if t.Position.Line != line {
			line, opened = t.Position.Line, 0
		}
		switch t.Type {
		case token.MappingStartType, token.SequenceStartType:
			depth++
		case token.MappingEndType, token.SequenceEndType:
			depth--
		case token.SequenceEntryType:
			opened++
		case token.MappingValueType:
			if depth <= 0 {
				opened++
			}
			if i > 0 && !keys[tokens[i-1].Value] {
				strange++
			}
		}
		if depth > deepest || opened > deepest {
			return nil, d.errorf(t, "", "nested too deep for a cluster file")
		}
		if strange > strangest {
			return nil, d.errorf(tokens[i-1], "", "%q: too many unknown keys for a cluster file", fault.Short(tokens[i-1].Value))
		}
	}
	file, err := parser.Parse(tokens, 0)
	if err != nil {
		if e, ok := errors.AsType[yaml.Error](err); ok && e.GetToken() != nil {
			return nil, d.errorf(e.GetToken(), "", "%s", fault.Short(e.GetMessage()))
		}
		return nil, fmt.Errorf("%s: %w", d.file, err)
	}
	var root ast.Node
	for _, doc := range file.Docs {
		if doc.Body == nil || doc.Body.Type() == ast.CommentType {
			continue
		}
		if root != nil {
			return nil, d.errorf(doc.Body.GetToken(), "", "a second document; a cluster file has one")
		}
		root = doc.Body
	}
	if root == nil {
		return nil, fmt.Errorf("%s: empty; a cluster file starts with version: %d", d.file, Version)
	}
	return root, nil
}

func (d *decoder) errorf(t *token.Token, path, format string, args ...any) error {
	return fault.New(d.place(t), path, format, args...)
}

// first is the token that a node starts with.
func first(n ast.Node) *token.Token {
	switch m := n.(type) {
	case *ast.MappingNode:
		if !m.IsFlowStyle && len(m.Values) > 0 {
			return first(m.Values[0])
		}
	case *ast.MappingValueNode:
		return m.Key.GetToken()
	}
	return n.GetToken()
}

func (d *decoder) place(t *token.Token) string {
	if t == nil || t.Position == nil {
		return d.file
	}
	return fmt.Sprintf("%s:%d:%d", d.file, t.Position.Line, t.Position.Column)
}

// position is where a field stands; the whole is the file.
func (d *decoder) position(path string) (at string, known bool) {
	if path == "" {
		return d.file, true
	}
	at, known = d.places[path]
	return at, known
}

// field is one key of a mapping and how its value is read.
type field[T any] struct {
	key      string
	required bool
	read     func(d *decoder, n ast.Node, path string, t *T) error
}

func names[T any](fields []field[T]) []string {
	out := make([]string, len(fields))
	for i, f := range fields {
		out[i] = f.key
	}
	return out
}

// decode reads a mapping.
func decode[T any](d *decoder, n ast.Node, path string, fields []field[T], t *T) error {
	var entries []*ast.MappingValueNode
	switch n := n.(type) {
	case *ast.MappingNode:
		entries = n.Values
	case *ast.MappingValueNode:
		entries = []*ast.MappingValueNode{n}
	default:
		return d.errorf(n.GetToken(), path, "keys and values expected, not %q", fault.Short(n.GetToken().Value))
	}
	if path != "" {
		path += "."
	}
	given := map[string]bool{}
next:
	for _, e := range entries {
		key := e.Key.GetToken()
		for _, f := range fields {
			if f.key != key.Value {
				continue
			}
			if given[f.key] {
				return d.errorf(key, path+f.key, "given twice")
			}
			given[f.key] = true
			d.places[path+f.key] = d.place(key)
			if err := f.read(d, e.Value, path+f.key, t); err != nil {
				return err
			}
			continue next
		}
		return d.errorf(key, "", "unknown key %q%s", fault.Short(path+key.Value), near.Hint(key.Value, names(fields)))
	}
	for _, f := range fields {
		if f.required && !given[f.key] {
			return d.errorf(first(n), path+f.key, "missing")
		}
	}
	return nil
}

// list reads a sequence, each element by read.
func list[E any](d *decoder, n ast.Node, path string, read func(n ast.Node, path string) (E, error)) ([]E, error) {
	seq, ok := n.(*ast.SequenceNode)
	if !ok {
		return nil, d.errorf(n.GetToken(), path, "a list expected (- ...)")
	}
	out := make([]E, 0, len(seq.Values))
	for i, v := range seq.Values {
		at := fmt.Sprintf("%s[%d]", path, i)
		d.places[at] = d.place(first(v))
		e, err := read(v, at)
		if err != nil {
			return nil, err
		}
		out = append(out, e)
	}
	return out, nil
}

// scalar is a field whose value is one word.
func scalar[T, V any](key string, required bool, parse func(string) (V, error), to func(*T) *V) field[T] {
	return field[T]{key, required, func(d *decoder, n ast.Node, path string, t *T) error {
		if _, ok := n.(ast.ScalarNode); !ok || n.Type() == ast.NullType {
			return d.errorf(n.GetToken(), path, "a value expected")
		}
		v, err := parse(n.GetToken().Value)
		if err != nil {
			return d.errorf(n.GetToken(), path, "%s", err)
		}
		*to(t) = v
		return nil
	}}
}

// part is a field whose value is a mapping, which T may lack.
func part[T, V any](key string, fields []field[V], start V, to func(*T) **V) field[T] {
	return field[T]{key, false, func(d *decoder, n ast.Node, path string, t *T) error {
		v := start
		*to(t) = &v
		return decode(d, n, path, fields, &v)
	}}
}

// many is a field whose value is a list of mappings.
func many[T, V any](key string, required bool, fields []field[V], start V, to func(*T) *[]V) field[T] {
	return field[T]{key, required, func(d *decoder, n ast.Node, path string, t *T) (err error) {
		*to(t), err = list(d, n, path, func(n ast.Node, path string) (V, error) {
			v := start
			return v, decode(d, n, path, fields, &v)
		})
		return err
	}}
}

// The format, key by key. docs/cluster.md describes it.
var (
	fileFields = []field[Cluster]{
		{"version", true, readVersion},
		scalar("nodes", true, parseInt, func(c *Cluster) *int { return &c.Nodes }),
		scalar("per-node", false, parseInt, func(c *Cluster) *int { return &c.PerNode }),
		many("links", true, linkFields, Link{}, func(c *Cluster) *[]Link { return &c.Links }),
		part("inside", insideFields, Link{}, func(c *Cluster) **Link { return &c.Inside }),
		part("servers", serverFields, Servers{Colocated: true}, func(c *Cluster) **Servers { return &c.Servers }),
		scalar("overlap", false, parseNumber, func(c *Cluster) *float64 { return &c.Overlap }),
		scalar("scale", false, parseNumber, func(c *Cluster) *float64 { return &c.Scale }),
		scalar("jitter", false, parseNumber, func(c *Cluster) *float64 { return &c.Jitter }),
		scalar("seed", false, parseSeed, func(c *Cluster) *uint64 { return &c.Seed }),
		many("workers", false, workerFields, asTheRest, func(c *Cluster) *[]Worker { return &c.Workers }),
	}
	linkFields = []field[Link]{
		scalar("name", true, parseText, func(l *Link) *string { return &l.Name }),
		scalar("bandwidth", false, ParseBandwidth, func(l *Link) *float64 { return &l.Bandwidth }),
		scalar("latency", false, ParseLatency, func(l *Link) *float64 { return &l.Latency }),
		scalar("algorithm", false, ParseAlgorithm, func(l *Link) *Algorithm { return &l.Algorithm }),
		scalar("medium", false, parseText, func(l *Link) *string { return &l.Medium }),
		scalar("in-flight", false, parseCount, func(l *Link) *int { return &l.InFlight }),
		many("curve", false, pointFields, Point{}, func(l *Link) *[]Point { return &l.Curve }),
	}
	insideFields = []field[Link]{
		scalar("name", false, parseText, func(l *Link) *string { return &l.Name }),
		scalar("bandwidth", true, ParseBandwidth, func(l *Link) *float64 { return &l.Bandwidth }),
		scalar("latency", false, ParseLatency, func(l *Link) *float64 { return &l.Latency }),
	}
	pointFields = []field[Point]{
		scalar("kind", true, ParseKind, func(p *Point) *Kind { return &p.Kind }),
		scalar("bytes", true, ParseSize, func(p *Point) *int64 { return &p.Bytes }),
		scalar("time", true, ParseLatency, func(p *Point) *float64 { return &p.Time }),
	}
	serverFields = []field[Servers]{
		scalar("count", false, parseCount, func(s *Servers) *int { return &s.Count }),
		scalar("colocated", false, parseBool, func(s *Servers) *bool { return &s.Colocated }),
		scalar("merge-rate", false, parseRate, func(s *Servers) *float64 { return &s.MergeRate }),
	}
	workerFields = []field[Worker]{
		scalar("rank", true, parseInt, func(w *Worker) *int { return &w.Rank }),
		scalar("scale", false, parseNumber, func(w *Worker) *float64 { return &w.Scale }),
		scalar("jitter", false, parseNumber, func(w *Worker) *float64 { return &w.Jitter }),
	}
)

// keys are all keys of the format.
var keys = func() map[string]bool {
	m := map[string]bool{}
	for _, k := range slices.Concat(names(fileFields), names(linkFields), names(pointFields), names(serverFields), names(workerFields)) {
		m[k] = true
	}
	return m
}()

// asTheRest is a worker before its own values are read. No value of a file is
// NaN: Read puts the cluster's in its place.
var asTheRest = Worker{Scale: math.NaN(), Jitter: math.NaN()}

func readVersion(d *decoder, n ast.Node, path string, _ *Cluster) error {
	if v := n.GetToken().Value; v != strconv.Itoa(Version) {
		return d.errorf(n.GetToken(), path, "%q; this program reads version %d", fault.Short(v), Version)
	}
	return nil
}

func parseText(s string) (string, error) { return s, nil }

func parseInt(s string) (int, error) {
	v, err := strconv.Atoi(s)
	if err != nil {
		return 0, fmt.Errorf("%q is not a whole number", fault.Short(s))
	}
	return v, nil
}

func parseCount(s string) (int, error) {
	v, err := parseInt(s)
	if err == nil && v < 1 {
		err = fmt.Errorf("%d; at least 1", v)
	}
	return v, err
}

func parseSeed(s string) (uint64, error) {
	v, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%q is not a whole number from 0 to 2^64-1", fault.Short(s))
	}
	return v, nil
}

func parseNumber(s string) (float64, error) {
	v, err := strconv.ParseFloat(s, 64)
	if err != nil || !finite(v) {
		return 0, fmt.Errorf("%q is not a number", fault.Short(s))
	}
	return v, nil
}

func parseBool(s string) (bool, error) {
	switch s {
	case "true":
		return true, nil
	case "false":
		return false, nil
	}
	return false, fmt.Errorf("%q is neither true nor false", fault.Short(s))
}

// parseRate reads a bandwidth as bytes a second.
func parseRate(s string) (float64, error) {
	bits, err := ParseBandwidth(s)
	return bits / 8, err
}
