// Package cli holds what weft's commands share: exit codes, reading inputs,
// reports as text or JSON, progress.
package cli

import (
	"errors"
	"fmt"
)

// The exit codes, as documented in docs/cli.md.
const (
	OK          = 0
	No          = 1   // the command worked, and its answer is no
	BadUsage    = 2   // the command line is wrong
	BadInput    = 3   // an input is wrong, or a file cannot be read or written
	Interrupted = 130 // by SIGINT or SIGTERM
)

// ErrNo is the error of a command whose answer is no. The answer itself has
// been printed.
var ErrNo = errors.New("the answer is no")

// usageError is a mistake in the command line.
type usageError struct{ error }

// Unwrap lets the cause be found.
func (e usageError) Unwrap() error { return e.error }

// Usagef returns an error about the command line.
func Usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// Usage marks err as an error about the command line; nil stays nil.
func Usage(err error) error {
	if err == nil {
		return nil
	}
	return usageError{err}
}

// Code is the exit code for what a command returned.
func Code(err error) int {
	switch {
	case err == nil:
		return OK
	case errors.Is(err, ErrNo):
		return No
	case errors.As(err, new(usageError)):
		return BadUsage
	default:
		return BadInput
	}
}
