// Package python holds the Python client of this version.
package python

import (
	"embed"
	"fmt"
	"os"
)

// Client is the package weft, as a folder of that name.
//
//go:embed weft/*.py weft/py.typed
var Client embed.FS

// Install writes the client into a directory, which it makes, and returns the variables
// with which python finds it, behind what PYTHONPATH has already, and the client finds
// this program. Getenv is [os.Getenv].
func Install(dir string, getenv func(string) string) ([]string, error) {
	self, err := os.Executable()
	if err == nil {
		err = os.CopyFS(dir, Client)
	}
	if err != nil {
		return nil, fmt.Errorf("the Python client: %w", err)
	}
	if own := getenv("PYTHONPATH"); own != "" {
		dir = own + ":" + dir
	}
	env := []string{"PYTHONPATH=" + dir}
	if getenv("WEFT_BINARY") == "" {
		env = append(env, "WEFT_BINARY="+self)
	}
	return env, nil
}
