package agent

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// region is memory shared with workers: a file without a name, of a size that
// nobody can change, or a worker could make the agent fault.
type region struct {
	fd    int // -1 once it has been handed out
	bytes []byte
}

// handedOut closes the descriptor, once every worker has one of its own.
func (r *region) handedOut() {
	if r.fd >= 0 {
		unix.Close(r.fd)
		r.fd = -1
	}
}

// close gives the memory back; the bytes may not be used any more.
func (r *region) close() {
	r.handedOut()
	if r.bytes != nil {
		unix.Munmap(r.bytes)
		r.bytes = nil
	}
}

// enough refuses to share more memory than the host has free. The system would
// hand it out, and later kill somebody.
func enough(regions int, size int64) error {
	if free, ok := Available(); ok && size > free/int64(regions) {
		return fmt.Errorf("the gradients of this host's workers take %d times %d bytes of shared memory, and %d are free", regions, size, free)
	}
	return nil
}

// Available is how much memory the host has free, bytes; false if that is not known.
func Available() (int64, bool) {
	b, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, false
	}
	return available(string(b))
}

func available(meminfo string) (int64, bool) {
	for line := range strings.Lines(meminfo) {
		f := strings.Fields(line)
		if len(f) == 3 && f[0] == "MemAvailable:" && f[2] == "kB" {
			n, err := strconv.ParseInt(f[1], 10, 64)
			return n << 10, err == nil
		}
	}
	return 0, false
}

// Touch reads a byte of every page, so that the system provides them now, and not while
// time is measured.
func Touch(memory []byte) (sum byte) {
	for at := 0; at < len(memory); at += os.Getpagesize() {
		sum += memory[at]
	}
	return sum
}
