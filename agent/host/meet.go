package host

import (
	"context"

	"weft/agent/rendezvous"
	"weft/collective"
	"weft/transport"
)

// Meet connects this host to the others, by an endpoint a rail, for those who do without an agent.
func (c *Config) Meet(ctx context.Context) ([]transport.Endpoint, collective.Layout, error) {
	m, err := c.rendezvous()
	if err != nil {
		return nil, nil, err
	}
	return rendezvous.Meet(ctx, m)
}
