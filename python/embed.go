// Package python holds the Python client of this version.
package python

import "embed"

// Client is the package weft, as a folder of that name.
//
//go:embed weft/*.py weft/py.typed
var Client embed.FS
