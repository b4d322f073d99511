//go:build !linux

package main

import (
	"context"
	"os"

	"weft/internal/cli"
)

func asRoot(_ context.Context, _ *cli.Console, _ <-chan os.Signal, _ []string, denied error) error {
	return denied
}
