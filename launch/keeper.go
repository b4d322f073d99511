package launch

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// Keeper is a process that tidies up after this one, also if this one is killed:
// it learns of that from the end of a pipe. Then it kills the process groups that
// it was told of, and removes a directory.
type Keeper struct {
	cmd  *exec.Cmd
	pipe *os.File
}

// keeperPipe is the keeper's descriptor of the pipe.
const keeperPipe = 3

// NewKeeper starts a keeper of dir, by the arguments with which this program calls
// [Keep]. A lock of the directory, if there is one, lasts as long as the keeper.
func NewKeeper(dir string, lock *os.File, args ...string) (*Keeper, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	k := &Keeper{exec.Command(self, append(args, dir)...), w}
	k.cmd.ExtraFiles = []*os.File{r}
	if lock != nil {
		k.cmd.ExtraFiles = append(k.cmd.ExtraFiles, lock)
	}
	k.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // the terminal's signals are not for it
	if err := k.cmd.Start(); err != nil {
		w.Close()
		return nil, fmt.Errorf("starting the keeper of %s: %w", dir, err)
	}
	return k, nil
}

// started and ended keep account of process groups. If the keeper is gone, there is
// none.
func (k *Keeper) started(pid int) { k.tell("+%d\n", pid) }
func (k *Keeper) ended(pid int)   { k.tell("-%d\n", pid) }

func (k *Keeper) tell(format string, pid int) {
	if k != nil {
		fmt.Fprintf(k.pipe, format, pid)
	}
}

// MakeTemp makes a directory for what this process needs while it runs, and a keeper of it,
// by the arguments of [NewKeeper].
func MakeTemp(args ...string) (dir string, k *Keeper, err error) {
	if dir, err = os.MkdirTemp("", DirPrefix); err != nil {
		return "", nil, fmt.Errorf("a directory for this run (TMPDIR says where): %w", err)
	}
	if k, err = NewKeeper(dir, nil, args...); err != nil {
		os.RemoveAll(dir)
	}
	return dir, k, err
}

// Close lets the keeper tidy up now, and waits until it has.
func (k *Keeper) Close() error {
	k.pipe.Close()
	return k.cmd.Wait()
}

// Keep is what the keeper does. It refuses a directory that is not one of weft's,
// and to run where nobody has given it a pipe.
func Keep(dir string) error {
	pipe := os.NewFile(keeperPipe, "pipe")
	if info, err := pipe.Stat(); err != nil || info.Mode()&os.ModeNamedPipe == 0 {
		return fmt.Errorf("weft starts its keeper itself")
	}
	if !filepath.IsAbs(dir) || !strings.HasPrefix(filepath.Base(dir), DirPrefix) {
		return fmt.Errorf("%s is not a directory of weft's", dir)
	}
	signal.Ignore(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	for pid := range groups(pipe) {
		syscall.Kill(-pid, syscall.SIGKILL)
	}
	return os.RemoveAll(dir)
}

// DirPrefix begins the name of a directory that a keeper may remove.
const DirPrefix = "weft-"

// groups reads to the end which process groups have been started and have not ended.
func groups(pipe io.Reader) map[int]bool {
	alive := map[int]bool{}
	for lines := bufio.NewScanner(pipe); lines.Scan(); {
		pid, err := strconv.Atoi(lines.Text())
		switch {
		case err != nil: // cut off
		case pid > 1:
			alive[pid] = true
		default:
			delete(alive, -pid)
		}
	}
	return alive
}
