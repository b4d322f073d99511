// Package fault says what is wrong with a file, or with the value read from it,
// and where.
package fault

import (
	"errors"
	"fmt"
	"strings"
)

// longest is how much of a text of unknown length a message quotes, in characters.
const longest = 80

// Short is a text from a file as messages quote it: cut, if it is long.
func Short(s string) string {
	n := 0
	for i := range s {
		if n == longest {
			return s[:i] + "..."
		}
		n++
	}
	return s
}

// Fault is one thing that is wrong.
type Fault struct {
	At   string // file and position, as far as known: "c.yaml:3:5", "job: line 8", "job"
	Path string // the field, in the words of the file: ops[17].deps[2]; "": the whole
	Msg  string
}

func (f *Fault) Error() string {
	if f.Path == "" {
		return f.At + ": " + f.Msg
	}
	return f.At + ": " + f.Path + ": " + f.Msg
}

// New is a fault as an error.
func New(at, path, format string, args ...any) error {
	return &Fault{At: at, Path: path, Msg: fmt.Sprintf(format, args...)}
}

// Locate puts err, if it is a fault, at the position of its field, or else of
// the nearest around it that position knows, the whole ("") at last.
func Locate(err error, position func(path string) (at string, known bool)) error {
	f, ok := errors.AsType[*Fault](err)
	if !ok {
		return err
	}
	for path := f.Path; ; path = path[:max(strings.LastIndexAny(path, ".["), 0)] {
		if at, known := position(path); known {
			return &Fault{at, f.Path, f.Msg}
		}
		if path == "" {
			return err
		}
	}
}
