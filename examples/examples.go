// Package examples holds the example trainings.
package examples

import "embed"

// Scripts are the Python files of this folder.
//
//go:embed *.py
var Scripts embed.FS
