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

// exitError asks for an exit code of its own.
type exitError struct {
	error
	code int
}

// Unwrap lets the cause be found.
func (e exitError) Unwrap() error { return e.error }

// Exit marks err as one with which the program ends with a code that is not weft's
// own: that of a program which it ran.
func Exit(code int, err error) error { return exitError{err, code} }

// IsUsage reports whether err is about the command line.
func IsUsage(err error) bool { return errors.As(err, new(usageError)) }

// Code is the exit code for what a command returned.
func Code(err error) int {
	var exit exitError
	switch {
	case err == nil:
		return OK
	case errors.As(err, &exit):
		return exit.code
	case errors.Is(err, ErrNo):
		return No
	case IsUsage(err):
		return BadUsage
	default:
		return BadInput
	}
}
