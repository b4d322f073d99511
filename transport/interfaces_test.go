package transport

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
)

func TestChooseLocal(t *testing.T) {
	iface := func(name string, addrs ...string) Interface {
		in := Interface{Name: name, Up: true, Loopback: name == "lo"}
		for _, a := range addrs {
			in.Addrs = append(in.Addrs, netip.MustParsePrefix(a+"/24"))
		}
		return in
	}
	down := iface("eth9", "10.9.0.1")
	down.Up = false
	lo := iface("lo", "127.0.0.1", "::1")
	host := []Interface{
		lo, down,
		iface("docker0", "172.17.0.1"),
		iface("eth0", "fe80::1", "203.0.113.5"),
		iface("eth1", "fe80::2", "10.1.0.5", "fd00::5"),
		iface("eth10", "10.10.0.5"),
		iface("ib0", "192.168.7.5"),
	}
	for _, tc := range []struct {
		name       string
		interfaces []Interface
		names      string
		route      string
		local      bool // all peers are on this host
		want       string
	}{
		{"the route", host, "", "192.168.7.5", false, "ib0 192.168.7.5, eth1 10.1.0.5, eth10 10.10.0.5, eth0 203.0.113.5, docker0 172.17.0.1"},
		{"a public route", host, "", "203.0.113.5", false, "eth0 203.0.113.5, eth1 10.1.0.5, eth10 10.10.0.5, ib0 192.168.7.5, docker0 172.17.0.1"},
		{"an IPv6 route", host, "eth1", "fd00::5", false, "eth1 fd00::5, eth10 10.10.0.5"},
		{"a route in the form of IPv6", host, "=ib0,eth1", "::ffff:10.1.0.5", false, "eth1 10.1.0.5, ib0 192.168.7.5"},
		{"no route", host, "", "", false, "eth1 10.1.0.5, eth10 10.10.0.5, ib0 192.168.7.5, eth0 203.0.113.5, docker0 172.17.0.1"},
		{"a loopback route, others elsewhere", host, "", "127.0.1.1", false, "eth1 10.1.0.5, eth10 10.10.0.5, ib0 192.168.7.5, eth0 203.0.113.5, docker0 172.17.0.1"},
		{"a loopback route, all here", host, "", "127.0.0.1", true, "lo 127.0.0.1, eth1 10.1.0.5, eth10 10.10.0.5, ib0 192.168.7.5, eth0 203.0.113.5, docker0 172.17.0.1"},
		{"only docker's", host[:3], "", "", false, "docker0 172.17.0.1"},
		{"prefix", host, "eth", "192.168.7.5", false, "eth1 10.1.0.5, eth10 10.10.0.5, eth0 203.0.113.5"},
		{"prefixes, in their order", host, "ib,eth1", "", false, "ib0 192.168.7.5, eth1 10.1.0.5, eth10 10.10.0.5"},
		{"spaces", host, " ib , eth1 ", "", false, "ib0 192.168.7.5, eth1 10.1.0.5, eth10 10.10.0.5"},
		{"the route among those chosen", host, "ib,eth1", "10.10.0.5", false, "eth10 10.10.0.5, ib0 192.168.7.5, eth1 10.1.0.5"},
		{"exact", host, "=eth1", "", false, "eth1 10.1.0.5"},
		{"exact list", host, "=eth1,ib0", "", false, "eth1 10.1.0.5, ib0 192.168.7.5"},
		{"excluded", host, "^eth,docker", "", false, "ib0 192.168.7.5"},
		{"excluded exactly", host, "^=eth1,docker0", "", false, "eth10 10.10.0.5, ib0 192.168.7.5, eth0 203.0.113.5"},
		{"docker's by name", host, "docker", "", false, "docker0 172.17.0.1"},
		{"loopback by name, all here", host, "lo", "", true, "lo 127.0.0.1"},
		{"loopback by name, others elsewhere", host, "lo", "", false,
			`of the interfaces lo, eth9, docker0, eth0, eth1, eth10, ib0, of which "lo" chooses, none has an address for peers on other hosts: loopback is only for this host`},
		{"nothing but loopback", []Interface{lo}, "", "", false, "of the interfaces lo none has an address for peers on other hosts: loopback is only for this host"},
		{"nothing by that name", host, "=eth", "", false, `of the interfaces lo, eth9, docker0, eth0, eth1, eth10, ib0, of which "=eth" chooses, none is up and has an address`},
		{"down", host, "eth9", "", false, `of the interfaces lo, eth9, docker0, eth0, eth1, eth10, ib0, of which "eth9" chooses, none is up and has an address`},
		{"link-local as the last of IPv4", []Interface{iface("a", "169.254.1.1"), iface("b", "10.0.0.1")}, "", "", false, "b 10.0.0.1, a 169.254.1.1"},
		{"nothing but link-local IPv6", []Interface{iface("a", "fe80::1")}, "", "", false, "of the interfaces a none is up and has an address"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var route netip.Addr
			if tc.route != "" {
				route = netip.MustParseAddr(tc.route)
			}
			locals, err := ChooseLocal(tc.interfaces, tc.names, route, !tc.local)
			var got []string
			for _, l := range locals {
				got = append(got, l.Interface+" "+l.Addr.String())
			}
			if err != nil {
				got = []string{err.Error()}
			}
			if s := strings.Join(got, ", "); s != tc.want {
				t.Errorf("got  %s\nwant %s", s, tc.want)
			}
		})
	}
}

func TestNames(t *testing.T) {
	for _, tc := range []struct{ nccl, gloo, want string }{
		{"", "", ""}, {"^docker", "", "^docker"}, {"", "eth0,eth1", "=eth0,eth1"}, {"ib", "eth0", "ib"},
	} {
		env := map[string]string{"NCCL_SOCKET_IFNAME": tc.nccl, "GLOO_SOCKET_IFNAME": tc.gloo}
		if got := Names(func(k string) string { return env[k] }); got != tc.want {
			t.Errorf("%v: got %q", tc, got)
		}
	}
}

// This host's own interfaces.
func TestThisHost(t *testing.T) {
	ins, err := Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	route := netip.MustParseAddr("127.0.0.1")
	locals, err := ChooseLocal(ins, "", route, false)
	if err != nil || locals[0].Addr != route {
		t.Errorf("of %s: %v, %v", fmt.Sprint(ins), locals, err)
	}
}
