//go:build !amd64

package kernel

import "weft/job"

// vector returns the kernel in vector instructions, where there is one.
func vector(job.DType, Op) (Kernel, bool) { return Kernel{}, false }
