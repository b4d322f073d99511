package plan

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
)

// Digest identifies the plan: the SHA-256 of what [Write] writes, so it does not
// depend on how a file was laid out. Ranks compare it to hold the same plan. It is
// empty for a plan that Write refuses.
func (p *Plan) Digest() string {
	b, err := p.encode()
	if err != nil {
		return ""
	}
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// Same returns nil if a and b are the same plan, otherwise an error that tells
// the first difference. It is rule 6 for two plans at hand.
func Same(a, b *Plan) error {
	first, err := a.encode()
	if err != nil {
		return fmt.Errorf("the first plan: %w", err)
	}
	second, err := b.encode()
	if err != nil {
		return fmt.Errorf("the second plan: %w", err)
	}
	x, y := bytes.Split(first, newline), bytes.Split(second, newline)
	for i := range max(len(x), len(y)) {
		switch {
		case i >= len(x):
			return fmt.Errorf("the second plan goes on at line %d: %s", i+1, bytes.TrimSpace(y[i]))
		case i >= len(y):
			return fmt.Errorf("the first plan goes on at line %d: %s", i+1, bytes.TrimSpace(x[i]))
		case !bytes.Equal(x[i], y[i]):
			return fmt.Errorf("first difference in line %d:\n  first:  %s\n  second: %s", i+1, bytes.TrimSpace(x[i]), bytes.TrimSpace(y[i]))
		}
	}
	return nil
}

var newline = []byte("\n")
