package launch

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/iotest"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestCopyLines(t *testing.T) {
	long := strings.Repeat("x", maxLine)
	for in, want := range map[string]string{
		"":                  "",
		"a\nb\n":            "[3] a\n[3] b\n",
		"no end":            "[3] no end\n",
		"\n\n":              "[3] \n[3] \n",
		"10 %\r20 %\rend\n": "[3] 10 %\r[3] 20 %\r[3] end\n",
		long + "yz\n":       "[3] " + long + "\n[3] yz\n",
	} {
		for _, from := range []io.Reader{strings.NewReader(in), iotest.HalfReader(strings.NewReader(in))} {
			var out bytes.Buffer
			if err := copyLines(&out, from, "[3] ", new(sync.Mutex)); err != nil {
				t.Error(err)
			}
			if got := out.String(); got != want && len(in) < maxLine || strings.ReplaceAll(strings.ReplaceAll(got, "[3] ", ""), "\n", "") != strings.ReplaceAll(in, "\n", "") {
				t.Errorf("%.20q: %.80q, want %.80q", in, got, want)
			}
		}
	}
}

// full is a disk without room.
type full struct{}

func (full) Write([]byte) (int, error) { return 0, syscall.ENOSPC }

// A worker whose output cannot be written goes on, and is not the one that fails.
func TestUnwritten(t *testing.T) {
	for _, errs := range []bool{false, true} {
		var out bytes.Buffer
		c := Config{Command: []string{"sh", "-c", "for i in $(seq 20000); do echo $i; echo $i >&2; done"}, Place: Place{Workers: 2, World: 2}, Out: full{}, Err: &out}
		if errs {
			c.Out, c.Err = c.Err, c.Out
		}
		g, err := Start(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		if failed := g.Wait(); failed != nil {
			t.Errorf("failed %+v", failed)
		}
		var lost *Failed
		if err := g.Unwritten(); !errors.As(err, &lost) || lost.Code != 1 || !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("unwritten: %v", err)
		}
		if n := strings.Count(out.String(), "\n"); n != 40000 {
			t.Errorf("%d lines of the other output", n)
		}
	}
}

// The first that fails is whose end counts; one that minds no SIGTERM is killed.
func TestStubborn(t *testing.T) {
	var out bytes.Buffer
	var mu sync.Mutex
	ends := map[int]string{}
	g, err := Start(t.Context(), Config{
		Command: []string{"sh", "-c", "case $RANK in 0) trap '' TERM; echo deaf; while :; do sleep 1000; done;; 1) sleep 1000;; 2) exit 5;; esac"},
		Place:   Place{Workers: 3, World: 3}, Out: &out, Err: &out, Settle: 200 * time.Millisecond, Grace: 200 * time.Millisecond,
		Ended: func(rank int, failed *Exit) {
			mu.Lock()
			defer mu.Unlock()
			ends[rank] = failed.How()
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if failed := g.Wait(); len(failed) != 3 || failed[0].Rank != 2 || failed[0].Code != 5 || failed[0].Told || !failed[1].Told || !failed[2].Told {
		t.Errorf("failed %+v", failed)
	}
	mu.Lock()
	defer mu.Unlock()
	// Rank 0's trap may come later than the signal.
	if want := map[int]string{0: ends[0], 1: "signal: terminated", 2: "exit code 5"}; !maps.Equal(ends, want) || !strings.HasPrefix(ends[0], "signal: ") {
		t.Errorf("ends %v, want %v", ends, want)
	}
}

// What a worker prints is seen only once the keeper knows of it: here it has to wait for a full pipe.
func TestKeeperKnows(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	room, err := unix.FcntlInt(w.Fd(), unix.F_GETPIPE_SZ, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(make([]byte, room)); err != nil {
		t.Fatal(err)
	}
	printed := filepath.Join(t.TempDir(), "printed")
	var read atomic.Bool
	early := false
	started := make(chan *Group, 1)
	go func() {
		g, err := Start(t.Context(), Config{
			Command: []string{"sh", "-c", "echo hello; touch " + printed}, Place: Place{Workers: 1, World: 1}, Err: io.Discard, Keeper: &Keeper{pipe: w},
			Out: writerFunc(func(p []byte) (int, error) {
				early = early || !read.Load()
				return len(p), nil
			}),
		})
		if err != nil {
			t.Error(err)
		}
		started <- g
	}()
	for _, err := os.Stat(printed); err != nil; _, err = os.Stat(printed) {
		runtime.Gosched()
	}
	read.Store(true)
	go io.Copy(io.Discard, r)
	if g := <-started; g != nil {
		g.Wait()
	}
	if early {
		t.Error("it was seen before")
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func TestSignal(t *testing.T) {
	signals := make(chan os.Signal)
	g, err := Start(t.Context(), Config{Command: []string{"sleep", "1000"}, Signals: signals, Place: Place{Workers: 2, World: 2}, Out: io.Discard, Err: io.Discard})
	if err != nil {
		t.Fatal(err)
	}
	signals <- syscall.SIGINT
	if failed := g.Wait(); len(failed) != 2 || failed[0].Code != 130 {
		t.Errorf("failed %+v", failed)
	}
}

func TestNothingToStart(t *testing.T) {
	before := len(descriptors(t))
	_, err := Start(t.Context(), Config{Command: []string{"/no/such/program"}, Place: Place{Workers: 2, World: 2}, Out: io.Discard, Err: io.Discard})
	if err == nil || !strings.Contains(err.Error(), "starting rank 0") {
		t.Error(err)
	}
	for len(descriptors(t)) > before { // readers end a little later
		time.Sleep(time.Millisecond)
	}
}

func descriptors(t *testing.T) []os.DirEntry {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return entries
}

func TestGroups(t *testing.T) {
	got := groups(strings.NewReader("+10\n+11\n+12\n-11\n+1\n-10\n+13\n+garb"))
	if want := []int{12, 13}; !slices.Equal(slices.Sorted(maps.Keys(got)), want) {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestMakeTempRefuses(t *testing.T) {
	t.Setenv("TMPDIR", filepath.Join(t.TempDir(), "nowhere"))
	if dir, _, err := MakeTemp("keep"); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "TMPDIR") {
		t.Errorf("%s, %v", dir, err)
	}
}

// It removes nothing where it has not been started by NewKeeper.
func TestKeepRefuses(t *testing.T) {
	dir := t.TempDir()
	if err := Keep(dir); err == nil {
		t.Error("it does")
	}
	if _, err := os.Stat(dir); err != nil {
		t.Error(err)
	}
}

func TestPlace(t *testing.T) {
	env := map[string]string{}
	want := Place{First: 2, Workers: 2, World: 8, MasterAddr: "fd00::1", MasterPort: 29500}
	for _, x := range want.environment(0) {
		name, value, _ := strings.Cut(x, "=")
		env[name] = value
	}
	getenv := func(name string) string { return env[name] }
	p, err := ReadPlace(getenv)
	if err != nil || p != want {
		t.Errorf("%+v, %v", p, err)
	}
	for port, want := range map[string]string{"": "[fd00::1]:29501", "7": "[fd00::1]:7"} {
		env["WEFT_PORT"] = port
		if got, err := p.Rendezvous(getenv); err != nil || got != want {
			t.Errorf("WEFT_PORT %q: %s, %v", port, got, err)
		}
	}
	for _, port := range []string{"x", "0", "-1", "65536"} {
		env["WEFT_PORT"] = port
		if got, err := p.Rendezvous(getenv); err == nil {
			t.Errorf("WEFT_PORT %q: %s", port, got)
		}
	}
	for name, values := range map[string][]string{
		"RANK": {"", "-1", "x", "7"}, "WORLD_SIZE": {"", "0", "1", "99999999999"}, "LOCAL_RANK": {"", "1"},
		"LOCAL_WORLD_SIZE": {"", "0", "9"}, "MASTER_PORT": {"", "0", "65536"}, "MASTER_ADDR": {""},
	} {
		for _, v := range values {
			old := env[name]
			env[name] = v
			if p, err := ReadPlace(getenv); err == nil || !strings.Contains(err.Error(), name) {
				t.Errorf("%s=%s: %+v, %v", name, v, p, err)
			}
			env[name] = old
		}
	}
}

func TestFault(t *testing.T) {
	told, first, second := &Exit{Rank: 0, Told: true}, &Exit{Rank: 1}, &Exit{Rank: 2}
	for _, x := range []struct {
		failed []*Exit
		rank   int
		want   *Exit
	}{
		{nil, 1, nil},
		{[]*Exit{told, first, second}, 2, second},
		{[]*Exit{told, first, second}, 0, first},
		{[]*Exit{told, first, second}, -1, first},
		{[]*Exit{told}, -1, told},
	} {
		if got := Fault(x.failed, x.rank); got != x.want {
			t.Errorf("%v, rank %d: %v, want %v", x.failed, x.rank, got, x.want)
		}
	}
}
