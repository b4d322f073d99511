package agent_test

import (
	"io"
	"net"
	"testing"

	"weft/agent"
	"weft/agent/protocol"
	"weft/job"
	"weft/plan"
	"weft/profile"
)

// Whatever a worker says after hello, the agent ends with a failure, or as it
// should, once the worker has gone.
func FuzzWorker(f *testing.F) {
	call := func(payload string) []byte {
		return protocol.Message{Kind: protocol.KindCall, Payload: []byte(payload)}.Append(nil)
	}
	hello := []byte(`{"version": 4, "mode": "per-tensor", "boundaries": true, "world": 1, "tensors": [{"name": "w", "elements": 5, "dtype": "float32"}]}`)
	f.Add(protocol.Message{Kind: protocol.KindReady}.Append(nil))
	f.Add(protocol.Message{Kind: protocol.KindGoodbye}.Append(nil))
	f.Add(protocol.Message{Kind: protocol.KindReady, Index: 7, Iteration: 1}.Append(nil))
	f.Add(protocol.Message{Kind: protocol.KindHello, Payload: hello}.Append(nil))
	f.Add(call(`{"kind": "all-reduce", "op": "mean", "dtype": "float32", "elements": 7}`))
	f.Add(call(`{"kind": "broadcast", "bytes": 12}`))
	f.Add(call(`{"kind": "barrier"}`))
	f.Add(call(`{"kind": "review", "report": {"iterations": 0, "times": [1]}}`))
	f.Add(protocol.Message{Kind: protocol.KindBoundary, Iteration: 1}.Append(nil))
	f.Add(protocol.Message{Kind: protocol.KindHello, Payload: []byte(`{"version": 4, "world": 1, "mode": "sometimes", "tensors": []}`)}.Append(nil))
	f.Add(protocol.Message{Kind: protocol.KindMoved}.Append(nil))
	f.Add(append(protocol.Message{Kind: protocol.KindReady}.Append(nil), call(`{"kind": "flush"}`)...))
	j := job.Chain("chain", []float64{1}, []float64{1}, []int64{20})
	j.Tensors[0].Name = "w"
	delayed := plan.New(j, "delayed", "net")
	for _, s := range []plan.Slice{{Length: 2}, {Offset: 2, Length: 3}} {
		delayed.AllReduce(0, plan.Bucket{Slices: []plan.Slice{s}})
	}
	delayed.Programs[0].Transfers[1].Gates = append(delayed.Programs[0].Transfers[1].Gates, plan.Gate{Kind: plan.Boundary})
	delayed.Updates[0].Iteration, delayed.MaxDelay, delayed.MaxStaleness, delayed.Buffers = 1, 1, 1, 2
	given := &agent.Schedule{Plan: delayed, Limits: plan.DelayLimits(1)}
	if err := given.Check(); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, said []byte) {
		for _, s := range []*agent.Schedule{nil, given} {
			listenTo(t, s, append(protocol.Message{Kind: protocol.KindHello, Payload: hello}.Append(nil), said...))
		}
	})
}

// listenTo has an agent listen to what a worker says, until both have ended.
func listenTo(t *testing.T, s *agent.Schedule, said []byte) {
	a, err := agent.Listen(agent.Config{
		World: 1, Ranks: []int{0}, Socket: shortDir(t) + "/agent", Schedule: s,
		Review: &agent.Review{After: 1, Profile: 1, Take: func(r agent.Reviewed) (d agent.Decided, err error) {
			_, err = profile.Job("", r.Tensors, r.Reports())
			return d, err
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	conn, err := net.Dial("unix", a.Socket)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.Write(said)
	conn.(*net.UnixConn).CloseWrite()
	io.Copy(io.Discard, conn) // until the agent hangs up
	<-a.Done()
}
