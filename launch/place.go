package launch

import (
	"fmt"
	"net"
	"strconv"
)

// Place is where the workers of this host stand among all. Their ranks follow each
// other.
type Place struct {
	First   int // rank of the first
	Workers int // of this host
	World   int // workers of all hosts
	// MasterAddr is a host and MasterPort a port of it that rank 0 may use to gather all
	// ranks; agents meet at another one, see [Place.Rendezvous].
	MasterAddr string
	MasterPort int
}

// maxWorld is what WORLD_SIZE may be.
const maxWorld = 1 << 20

// ReadPlace reads what launchers tell to the worker of local rank 0. getenv is
// [os.Getenv].
func ReadPlace(getenv func(string) string) (Place, error) {
	var p Place
	var local int
	for _, x := range []struct {
		name        string
		to          *int
		least, most int
	}{
		{"WORLD_SIZE", &p.World, 1, maxWorld},
		{"RANK", &p.First, 0, maxWorld - 1},
		{"LOCAL_RANK", &local, 0, 0},
		{"LOCAL_WORLD_SIZE", &p.Workers, 1, maxWorld},
		{"MASTER_PORT", &p.MasterPort, 1, 1<<16 - 1},
	} {
		n, err := strconv.Atoi(getenv(x.name))
		if err != nil || n < x.least || n > x.most {
			return p, fmt.Errorf("%s is %q: need a number from %d to %d", x.name, getenv(x.name), x.least, x.most)
		}
		*x.to = n
	}
	if p.First > p.World-p.Workers {
		return p, fmt.Errorf("RANK %d and LOCAL_WORLD_SIZE %d, of WORLD_SIZE %d workers: too many", p.First, p.Workers, p.World)
	}
	if p.MasterAddr = getenv("MASTER_ADDR"); p.MasterAddr == "" {
		return p, fmt.Errorf("MASTER_ADDR is not set")
	}
	return p, nil
}

// Alone tells that there are no other hosts.
func (p *Place) Alone() bool { return p.Workers == p.World }

// Ranks are those of this host.
func (p *Place) Ranks() (out []int) {
	for i := range p.Workers {
		out = append(out, p.First+i)
	}
	return out
}

// Rendezvous is where the agents of all hosts meet, host:port: the port is WEFT_PORT,
// or else the one after MASTER_PORT, which torch.distributed holds.
func (p *Place) Rendezvous(getenv func(string) string) (string, error) {
	port := p.MasterPort + 1
	if s := getenv("WEFT_PORT"); s != "" {
		var err error
		if port, err = strconv.Atoi(s); err != nil || port < 1 {
			return "", fmt.Errorf("WEFT_PORT is %q: need a port's number", s)
		}
	}
	if port > 1<<16-1 {
		return "", fmt.Errorf("port %d, where agents meet, is too large: set WEFT_PORT, on all hosts", port)
	}
	return net.JoinHostPort(p.MasterAddr, strconv.Itoa(port)), nil
}

// environment is what every launcher tells to worker i of this host.
func (p *Place) environment(i int) []string {
	env := []string{"MASTER_ADDR=" + p.MasterAddr}
	for _, x := range []struct {
		name string
		n    int
	}{
		{"RANK", p.First + i}, {"WORLD_SIZE", p.World}, {"LOCAL_RANK", i}, {"LOCAL_WORLD_SIZE", p.Workers},
		{"MASTER_PORT", p.MasterPort},
	} {
		env = append(env, fmt.Sprintf("%s=%d", x.name, x.n))
	}
	return env
}

// FreePort is a port of this host's loopback that nobody has now.
func FreePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("finding a free port: %w", err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}
