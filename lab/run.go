package lab

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"weft/launch"
	"weft/python"
)

// masterPort of a lab, in which nobody else has a port.
const masterPort = 29500

// RunConfig of a command's run in a lab.
type RunConfig struct {
	Config
	// Keep is the arguments with which this program calls [launch.Keep], Again those
	// with which it comes to this run once more, in a user namespace.
	Keep, Again []string
	Getenv      func(string) string // [os.Getenv]
	// Out and Err get what the command prints.
	Out, Err io.Writer
}

// Run runs a command on each host of a new lab until all have ended. Where the user
// may not make one, it runs this program again, in a user namespace in which it may. A first
// SIGINT or SIGTERM is passed on to the hosts, a second one kills them.
func Run(ctx context.Context, c RunConfig, command []string) (err error) {
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(signals)

	l, err := New(c.Config)
	if errors.As(err, new(*PermissionError)) {
		return asRoot(ctx, &c, signals, err)
	}
	if err != nil {
		return err
	}
	defer func() { err = cmp.Or(err, l.Close()) }()
	dir, keeper, err := launch.MakeTemp(c.Keep...)
	if err != nil {
		return err
	}
	defer func() { err = cmp.Or(err, keeper.Close()) }()
	secret := filepath.Join(dir, "secret")
	if err := os.WriteFile(secret, []byte(rand.Text()+rand.Text()), 0o600); err != nil {
		return err
	}
	client, err := python.Install(filepath.Join(dir, "python"), c.Getenv)
	if err != nil {
		return err
	}
	g, err := launch.Start(ctx, launch.Config{
		Env: client, Command: command, Place: launch.Place{Workers: c.Hosts, World: c.Hosts}, Out: c.Out, Err: c.Err, Keeper: keeper, Signals: signals,
		Prepare: func(host int) ([]string, error) {
			return l.Environment(host, masterPort, secret), l.Enter(host)
		},
	})
	if err != nil {
		return err
	}
	first := launch.Fault(g.Wait(), -1)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case first != nil:
		return &launch.Failed{Code: first.Code, Err: fmt.Errorf("host %d ended: %s", first.Rank, first.How())}
	}
	return g.Unwritten()
}

// Environment is what launchers give to workers, for one worker a host, and to
// launchers that are started on the hosts: those of one training, which has a port of
// host 0 and the file of a secret.
func (l *Lab) Environment(host, port int, secret string) []string {
	var rails []string
	for rail := range l.rates() {
		rails = append(rails, Interface(rail))
	}
	return []string{
		fmt.Sprint("RANK=", host), fmt.Sprint("WORLD_SIZE=", l.Hosts), "LOCAL_RANK=0", "LOCAL_WORLD_SIZE=1",
		fmt.Sprint("MASTER_ADDR=", Addr(0, 0)), fmt.Sprint("MASTER_PORT=", port),
		fmt.Sprint("WEFT_NODES=", l.Hosts), fmt.Sprint("WEFT_NODE_RANK=", host), "WEFT_SECRET_FILE=" + secret,
		"GLOO_SOCKET_IFNAME=" + rails[0], "NCCL_SOCKET_IFNAME=" + rails[0], "WEFT_RAILS=" + strings.Join(rails, ","),
	}
}
