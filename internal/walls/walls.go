// Package walls keeps the pure packages pure: it reads the module's source and
// reports every way in which a package behind the wall reaches I/O, the clock,
// a random source or the packages that do I/O for a living.
package walls

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
)

// Rules say what is behind the wall and what must stay outside. Packages are
// named by path; a name covers the packages below it too ("net": "net/http").
type Rules struct {
	Pure     []string // of the module: behind the wall
	Outside  []string // of the module: what pure packages may not import
	Standard []string // of the standard library: likewise
	// Names are what pure packages may not use of packages that they may
	// import: by package, the identifiers.
	Names map[string][]string
}

// Default is the project's wall.
var Default = Rules{
	Pure:     []string{"job", "cluster", "plan", "policy", "bound", "sim", "timeline", "compare", "zoo", "study", "pair", "pilot", "profile", "engine"},
	Outside:  []string{"trace", "engine", "transport", "collective", "agent", "launch", "lab", "links", "replay", "cmd"},
	Standard: []string{"net", "os", "syscall", "io/ioutil", "math/rand", "crypto/rand", "plugin"},
	Names: map[string][]string{
		"time": {"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "Tick", "NewTicker", "NewTimer"},
	},
}

// Breach is one way through the wall.
type Breach struct {
	Pos  token.Position // where the code is that does it
	Via  []string       // from the pure package to the package of that code
	What string         // "imports os", "uses time.Now"
}

func (b Breach) String() string {
	return fmt.Sprintf("%s: %s %s", b.Pos, strings.Join(b.Via, " -> "), b.What)
}

// pkg is what the check needs to know of one package of the module.
type pkg struct {
	imports  []string // of the module, without the module's own path
	breaches []Breach // of its own files, Via not yet set
}

// Check reads the module in fsys, whose go.mod names it, and returns every
// breach, in order of pure package, then of position. Tests are not held to
// the wall. A pure package answers for the module's packages that it imports,
// however far; for other modules only by direct import.
func Check(fsys fs.FS, rules Rules) ([]Breach, error) {
	module, err := modulePath(fsys)
	if err != nil {
		return nil, err
	}
	pkgs := map[string]*pkg{}
	fset := token.NewFileSet()
	err = fs.WalkDir(fsys, ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir():
			return skipDir(fsys, name)
		case !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go"):
			return nil
		}
		src, err := fs.ReadFile(fsys, name)
		if err != nil {
			return err
		}
		file, err := parser.ParseFile(fset, name, src, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		dir := path.Dir(name)
		if pkgs[dir] == nil {
			pkgs[dir] = new(pkg)
		}
		pkgs[dir].add(fset, file, module, rules)
		return nil
	})
	if err != nil {
		return nil, err
	}

	var out []Breach
	for _, dir := range sortedKeys(pkgs) {
		if under(dir, rules.Pure) {
			out = append(out, reach(pkgs, dir)...)
		}
	}
	return out, nil
}

// reach collects the breaches of a package and of all that it imports, each
// with the shortest way there.
func reach(pkgs map[string]*pkg, from string) []Breach {
	via := map[string][]string{from: {from}}
	var out []Breach
	for queue := []string{from}; len(queue) > 0; queue = queue[1:] {
		p := pkgs[queue[0]]
		if p == nil { // an import that does not exist; the compiler will say so
			continue
		}
		for _, b := range p.breaches {
			b.Via = via[queue[0]]
			out = append(out, b)
		}
		for _, next := range p.imports {
			if via[next] == nil {
				via[next] = append(slices.Clone(via[queue[0]]), next)
				queue = append(queue, next)
			}
		}
	}
	return out
}

// add records what one file imports and uses.
func (p *pkg) add(fset *token.FileSet, file *ast.File, module string, rules Rules) {
	breach := func(n ast.Node, format string, args ...any) {
		p.breaches = append(p.breaches, Breach{Pos: fset.Position(n.Pos()), What: fmt.Sprintf(format, args...)})
	}
	watched := map[string]string{} // local name -> package of rules.Names
	for _, spec := range file.Imports {
		imported, _ := strconv.Unquote(spec.Path.Value)
		if inner, ok := strings.CutPrefix(imported, module+"/"); ok {
			if under(inner, rules.Outside) {
				breach(spec, "imports %s", inner)
			} else {
				p.imports = append(p.imports, inner)
			}
			continue
		}
		if under(imported, rules.Standard) {
			breach(spec, "imports %s", imported)
		}
		if _, ok := rules.Names[imported]; ok {
			local := path.Base(imported)
			if spec.Name != nil {
				local = spec.Name.Name
			}
			if local == "." { // its names would then look like the package's own
				breach(spec, "imports %s into its own scope", imported)
			}
			watched[local] = imported
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		sel, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		if x, ok := sel.X.(*ast.Ident); ok && slices.Contains(rules.Names[watched[x.Name]], sel.Sel.Name) {
			breach(sel, "uses %s.%s", watched[x.Name], sel.Sel.Name)
		}
		return true
	})
}

// skipDir skips what the go command skips: hidden directories, testdata and
// nested modules.
func skipDir(fsys fs.FS, dir string) error {
	if dir == "." {
		return nil
	}
	base := path.Base(dir)
	if base[0] == '.' || base[0] == '_' || base == "testdata" || base == "vendor" {
		return fs.SkipDir
	}
	if _, err := fs.Stat(fsys, path.Join(dir, "go.mod")); err == nil {
		return fs.SkipDir
	}
	return nil
}

func modulePath(fsys fs.FS) (string, error) {
	b, err := fs.ReadFile(fsys, "go.mod")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) >= 2 && f[0] == "module" {
			return f[1], nil
		}
	}
	return "", fmt.Errorf("go.mod: no module line")
}

// under reports whether a package is one of the named ones or below one.
func under(pkg string, names []string) bool {
	return slices.ContainsFunc(names, func(n string) bool {
		return pkg == n || strings.HasPrefix(pkg, n+"/")
	})
}

func sortedKeys(m map[string]*pkg) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
