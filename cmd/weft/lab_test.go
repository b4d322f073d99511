package main

import (
	"bytes"
	"cmp"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"weft/internal/cli"
	"weft/lab"
)

// needsLab skips where there are no rights to make one, as the tests of package lab do.
func needsLab(t *testing.T) {
	l, err := lab.New(lab.Config{Hosts: 1})
	if errors.As(err, new(*lab.PermissionError)) && os.Getenv("WEFT_TEST_LAB") == "" {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
}

// labs is weft lab, as runs is weft run.
func labs(t *testing.T, args ...string) (string, int) {
	t.Helper()
	needsLab(t)
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	var out bytes.Buffer
	code := run(t.Context(), &cli.Console{Out: &out, Err: &out}, append([]string{"lab"}, args...))
	empty(t, tmp)
	lines := strings.SplitAfter(out.String(), "\n")
	slices.Sort(lines)
	return strings.Join(lines, ""), code
}

// A command finds its place in the environment, on a host of its own.
func TestLab(t *testing.T) {
	out, code := labs(t, "--hosts", "2", "--rate", "1Gbit", "--", "sh", "-c", `
		echo $RANK of $WORLD_SIZE, here $LOCAL_RANK of $LOCAL_WORLD_SIZE, master $MASTER_ADDR:$MASTER_PORT, by $GLOO_SOCKET_IFNAME
		echo node $WEFT_NODE_RANK of $WEFT_NODES
		test $(stat -c '%a %s' $WEFT_SECRET_FILE | tr ' ' :) = 600:52 || echo bad secret
		grep -c eth0 /proc/net/dev /proc/self/net/dev`)
	want := `[0] /proc/net/dev:1
[0] /proc/self/net/dev:1
[0] 0 of 2, here 0 of 1, master 10.0.0.1:29500, by eth0
[0] node 0 of 2
[1] /proc/net/dev:1
[1] /proc/self/net/dev:1
[1] 1 of 2, here 0 of 1, master 10.0.0.1:29500, by eth0
[1] node 1 of 2
`
	if code != cli.OK || out != want {
		t.Errorf("exit code %d:\n%s\nwant:\n%s", code, out, want)
	}
}

// A lab of two rails, with the rate of each.
func TestLabRails(t *testing.T) {
	out, code := labs(t, "--rails", "2", "--rate", "1Gbit,500Mbit", "--", "sh", "-c", `echo $WEFT_RAILS by $GLOO_SOCKET_IFNAME; tail -n 1 /proc/net/dev | cut -d: -f1`)
	want := strings.ReplaceAll("[N] eth0,eth1 by eth0\n[N]   eth1\n", "N", "0") + strings.ReplaceAll("[N] eth0,eth1 by eth0\n[N]   eth1\n", "N", "1")
	sorted := strings.SplitAfter(want, "\n")
	slices.Sort(sorted)
	if want = strings.Join(sorted, ""); code != cli.OK || out != want {
		t.Errorf("exit code %d:\n%s\nwant:\n%s", code, out, want)
	}
}

// Hosts in a lab of two rails meet over both, unless they are told of different ones.
func TestLabMeet(t *testing.T) {
	t.Setenv(asProgram, "1")
	t.Setenv("WEFT", os.Args[0])
	t.Setenv("SHARED", t.TempDir())
	// 10.0.1.1 to 10.0.1.2, or the other way round, as the kernel writes them.
	out, code := labs(t, "--rails", "2", "--", "sh", "-c", `exec $WEFT run -- sh -c '
		until grep -q "0[12]01000A:.* 0[12]01000A:.* 01 " /proc/net/tcp; do sleep 0.02; done
		touch $SHARED/$WEFT_NODE_RANK
		until test -e $SHARED/0 -a -e $SHARED/1; do sleep 0.02; done
		echo met'`)
	if want := "[0] [0] met\n[1] [1] met\n"; code != cli.OK || out != want {
		t.Errorf("exit code %d:\n%s\nwant:\n%s", code, out, want)
	}
	out, code = labs(t, "--rails", "2", "--", "sh", "-c", `test $RANK = 1 && export WEFT_RAILS=eth1; exec $WEFT run -- sleep 1000`)
	if want := "rank 0 has 2 rails, rank 1 one rail: give all hosts as many (--rails, WEFT_RAILS)"; code == cli.OK || !strings.Contains(out, want) {
		t.Errorf("exit code %d:\n%s\nwant:\n%s", code, out, want)
	}
}

func TestLabFails(t *testing.T) {
	for want, command := range map[string]string{
		"weft: host 1 ended: exit code 7\n":    "test $RANK = 1 && exit 7; exec sleep 1000",
		"weft: host 0 ended: signal: killed\n": "test $RANK = 0 && kill -9 $$; exec sleep 1000",
	} {
		if out, code := labs(t, "--", "sh", "-c", command); out != want || code != 7 && code != 137 {
			t.Errorf("exit code %d:\n%s\nwant:\n%s", code, out, want)
		}
	}
}

func TestLabUsage(t *testing.T) {
	for _, args := range [][]string{{}, {"--hosts", "0", "--", "true"}, {"--hosts", "251", "--", "true"}, {"--rate", "1", "--", "true"}, {"--rate", "1bit", "--", "true"}, {"--rails", "0", "--", "true"}, {"--rails", "9", "--", "true"}, {"--rails", "3", "--rate", "1Gbit,2Gbit", "--", "true"}, {"--rate", "1Gbit,2Gbit", "--", "true"}} {
		var out bytes.Buffer
		if code := run(t.Context(), &cli.Console{Out: &out, Err: &out}, append([]string{"lab"}, args...)); code != cli.BadUsage || strings.Count(out.String(), "\n") != 2 {
			t.Errorf("%v: exit code %d:\n%s", args, code, out.String())
		}
	}
}

func TestLabSignals(t *testing.T) {
	needsLab(t)
	bySignals(t, "lab", "--hosts", "2")
}

// A lab of a user without rights is in a user namespace, where the kernel allows it.
func TestLabAsUser(t *testing.T) {
	needsLab(t) // this is root
	dir, err := os.MkdirTemp("", "user")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	program := filepath.Join(dir, "weft")
	binary, err := os.ReadFile(os.Args[0])
	if err := cmp.Or(err, os.Chmod(dir, 0o777), os.WriteFile(program, binary, 0o755)); err != nil {
		t.Fatal(err)
	}
	const nobody = 65534
	weft := func(args ...string) (string, int) {
		cmd := exec.Command(program, args...)
		cmd.Env = append(os.Environ(), asProgram+"=1", "TMPDIR="+dir)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
		out, _ := cmd.CombinedOutput()
		return string(out), cmd.ProcessState.ExitCode()
	}
	out, code := weft("lab", "--hosts", "1", "--", "sh", "-c", "id -u; exit 5")
	refused := strings.Contains(out, "a lab needs root") && code == cli.BadInput // by a kernel that lets no user make namespaces
	if want := "[0] 65534\nweft: host 0 ended: exit code 5\n"; !refused && (out != want || code != 5) {
		t.Errorf("exit code %d:\n%s\nwant:\n%s", code, out, want)
	}
}
