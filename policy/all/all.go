// Package all names every policy.
package all

import (
	"fmt"
	"slices"

	"weft/internal/fault"
	"weft/internal/near"
	"weft/policy"
	"weft/policy/auto"
	"weft/policy/caramel"
	"weft/policy/crossover"
	"weft/policy/dear"
	"weft/policy/deft"
	"weft/policy/fusion"
	"weft/policy/priority"
	"weft/policy/server"
	"weft/policy/usbyte"
)

var policies = []policy.Policy{
	fusion.Recorded,
	fusion.WFBP,
	fusion.DDP,
	fusion.Horovod,
	fusion.MGWFBP,
	fusion.MGWFBPExact,
	fusion.ASCWFBP,
	priority.P3,
	priority.ByteScheduler,
	priority.ByteSchedulerBO,
	usbyte.USByte,
	dear.DeAR,
	crossover.Crossover,
	caramel.Caramel,
	deft.DeFT,
	server.PS,
	priority.P3Servers,
	server.TIC,
	server.TAC,
	server.DynaComm,
}

// Searched lists what the search tries, plainest first.
func Searched() []policy.Policy { return slices.Clone(policies) }

// Policies lists every policy: those that are searched, and last the search.
func Policies() []policy.Policy { return append(Searched(), auto.New(policies)) }

// Lookup finds a policy by name.
func Lookup(name string) (policy.Policy, error) {
	var names []string
	for _, p := range Policies() {
		if p.Name == name {
			return p, nil
		}
		names = append(names, p.Name)
	}
	return policy.Policy{}, fmt.Errorf("no policy %q%s", fault.Short(name), near.Hint(name, names))
}
