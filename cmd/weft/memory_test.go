package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"weft/agent/protocol"
	"weft/agent/worker"
	"weft/internal/cli"
	"weft/launch"
)

// beyond is how much memory an agent may take that no bucket lies in, bytes.
const beyond = 64e6

// TestMemory trains by the program that users have, with as many calls under way as there may
// be, on one host and between several. The first worker of each host asks the system for the most
// memory that its agent's process had resident, VmHWM: all that it shares with workers, its heap,
// its stacks and its program. Buckets are one region a worker and one for the result, without the
// part of calls. -v prints the table of docs/benchmarks.md.
func TestMemory(t *testing.T) {
	weft := filepath.Join(t.TempDir(), "weft")
	build := exec.Command("go", "build", "-o", weft, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	t.Setenv(asWorker, "full")
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("a secret of this test"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("WEFT_SECRET_FILE", secret)
	table := cli.Table{Columns: []cli.Column{{Head: "hosts"}, {Head: "workers\na host"}, {Head: "buckets"}, {Head: "of\nB"}, {Head: "buckets\nMB"}, {Head: "agent\nMB"}, {Head: "beyond\nMB"}}}
	for _, x := range []struct{ hosts, workers, buckets, bytes int }{
		{1, 1, 1, 4 << 10}, {1, 2, 1, 4 << 10}, {1, 2, 4000, 4 << 10}, {1, 2, 4, 64 << 20}, {1, 8, 4, 4 << 20},
		{2, 1, 1, 4 << 10}, {2, 1, 4000, 4 << 10}, {2, 1, 4, 64 << 20}, {2, 2, 4000, 4 << 10}, {4, 1, 4, 16 << 20},
	} {
		t.Setenv("WEFT_TEST_BUCKETS", fmt.Sprintf("%d of %d", x.buckets, x.bytes))
		most, shared := agentMemory(t, weft, x.hosts, x.workers)
		if most < shared || most > shared+beyond {
			t.Errorf("%+v: the agent's memory was %d bytes, %d of them buckets", x, most, shared)
		}
		mb := func(n int) string { return fmt.Sprintf("%.1f", float64(n)/1e6) }
		table.Rows = append(table.Rows, cli.Row{Cells: []any{x.hosts, x.workers, x.buckets, x.bytes, mb(shared), mb(most), mb(most - shared)}})
	}
	var out bytes.Buffer
	c := cli.Console{Out: &out, Err: &out}
	if err := c.Print(&cli.Report{Tables: []cli.Table{table}}, false); err != nil {
		t.Fatal(err)
	}
	t.Log("\n" + out.String())
}

// agentMemory trains on hosts that are this machine, and returns the memory of the agent that
// had most beyond its buckets, and what these took, bytes.
func agentMemory(t *testing.T, weft string, hosts, workers int) (most, shared int) {
	t.Helper()
	port, err := launch.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	said := make([]bytes.Buffer, hosts)
	cmds := make([]*exec.Cmd, hosts)
	for h := range cmds {
		args := []string{"run", "-n", strconv.Itoa(workers), "--policy", "ddp"}
		if hosts > 1 {
			args = append(args, "--nodes", strconv.Itoa(hosts), "--node-rank", strconv.Itoa(h), "--master", fmt.Sprint("127.0.0.1:", port))
		}
		cmds[h] = exec.Command(weft, append(args, "--", os.Args[0])...)
		cmds[h].Stdout, cmds[h].Stderr = &said[h], &said[h]
		if err := cmds[h].Start(); err != nil {
			t.Fatal(err)
		}
	}
	for h, cmd := range cmds {
		err := cmd.Wait()
		at := strings.Index(said[h].String(), "memory ")
		var m, s int
		if at >= 0 {
			_, err = fmt.Sscanf(said[h].String()[at:], "memory %d %d", &m, &s)
		}
		if at < 0 || err != nil {
			t.Fatalf("host %d: %v:\n%s", h, err, said[h].String())
		}
		if m-s >= most-shared {
			most, shared = m, s
		}
	}
	return most, shared
}

// workFull reduces buckets, and makes calls that fill all the memory that there is for them.
func workFull(w *worker.Worker) error {
	var count, size int64
	if _, err := fmt.Sscanf(os.Getenv("WEFT_TEST_BUCKETS"), "%d of %d", &count, &size); err != nil {
		return err
	}
	h := protocol.Hello{FirstBucket: size, BucketBytes: size}
	for k := range count {
		h.Tensors = append(h.Tensors, protocol.Tensor{Name: fmt.Sprint("t", k), Elements: size / 4, DType: "float32"})
	}
	if err := w.Hello(h); err != nil {
		return err
	}
	for i := range 5 {
		for b := range w.Welcome.Buckets {
			at := worker.Region(w.Input, w.Welcome.Buckets[b].Region)
			for k := 0; k < len(at); k += os.Getpagesize() {
				at[k] = byte(i)
			}
			if err := w.Ready(b, i); err != nil {
				return err
			}
		}
		for range w.Welcome.Buckets {
			if _, _, err := w.Done(); err != nil {
				return err
			}
		}
		const places = 4
		place := w.Welcome.CallBytes / places
		for k := range int64(places) {
			clear(w.Input[w.Welcome.CallOffset+k*place:][:place])
			if _, err := w.Begin(protocol.Call{Kind: "all-reduce", Op: "sum", DType: "float32", At: k * place, Elements: place / 4, From: k * place / 4}); err != nil {
				return err
			}
		}
		for range places {
			if _, err := w.Returned(); err != nil {
				return err
			}
		}
	}
	if w.LocalRank == 0 {
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", os.Getppid()))
		if err != nil {
			return err
		}
		_, most, _ := strings.Cut(string(status), "VmHWM:")
		kib, err := strconv.ParseInt(strings.Fields(most)[0], 10, 64)
		if err != nil {
			return err
		}
		local, err := strconv.ParseInt(os.Getenv("LOCAL_WORLD_SIZE"), 10, 64)
		if err != nil {
			return err
		}
		fmt.Println("memory", kib<<10, w.Welcome.CallOffset*(local+1))
	}
	return w.Goodbye()
}
