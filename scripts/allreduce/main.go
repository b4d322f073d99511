// Command allreduce compares all-reduces of float32: gloo and weft from Python, in the
// same processes; Open MPI and weft's engine without Python. All take turns, size by
// size, on one host, between network namespaces, and between namespaces at a rate.
//
//	go build -o bin/ ./cmd/weft ./scripts/allreduce
//	bin/allreduce -o docs/benchmarks.md
//
// It needs root, mpicc and mpirun of Open MPI 4.1, and a python3 with torch.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"weft/cluster"
	"weft/lab"
	"weft/launch"
)

// options of the command line.
type options struct {
	python, weft string
	systems      []string
	rounds       int
	turn         time.Duration
	sizes        []int64
}

// setting is where workers are.
type setting struct {
	name  string
	apart bool    // a namespace each
	rate  float64 // bits a second; 0: unshaped
}

func main() {
	switch os.Getenv(role) {
	case "engine":
		exit(engine())
	case "burn":
		exit(burn())
	}
	if len(os.Args) == 3 && os.Args[1] == "keep" {
		exit(launch.Keep(os.Args[2]))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	exit(compare(ctx))
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "allreduce:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

func compare(ctx context.Context) error {
	var o options
	flag.StringVar(&o.python, "python", "/usr/bin/python3", "a python with torch")
	flag.StringVar(&o.weft, "weft", "", "the weft `program` (default: beside this one)")
	flag.IntVar(&o.rounds, "rounds", 3, "turns of each system at each size")
	flag.DurationVar(&o.turn, "turn", 100*time.Millisecond, "how long a turn is, about, at least one iteration")
	sizes := flag.String("sizes", "4KiB,64KiB,1MiB,16MiB,64MiB", "sizes of the buckets")
	workers := flag.String("workers", "2,4", "numbers of workers")
	where := flag.String("settings", "host,namespaces,1Gbit", "where workers are: host, namespaces, or namespaces at a rate")
	systems := flag.String("systems", strings.Join(names, ","), "what to compare")
	page := flag.String("o", "", "a `page` in which the tables replace those of the last run (default: print them)")
	flag.Parse()

	o.systems = strings.Split(*systems, ",")
	for s := range strings.SplitSeq(*sizes, ",") {
		n, err := cluster.ParseSize(s)
		if err != nil {
			return err
		}
		o.sizes = append(o.sizes, n)
	}
	var settings []setting
	for s := range strings.SplitSeq(*where, ",") {
		switch s {
		case "host":
			settings = append(settings, setting{name: "One host"})
		case "namespaces":
			settings = append(settings, setting{name: "A namespace a worker, unshaped", apart: true})
		default:
			rate, err := cluster.ParseBandwidth(s)
			if err != nil {
				return err
			}
			settings = append(settings, setting{fmt.Sprintf("A namespace a worker, %s/s each way", s), true, rate})
		}
	}
	if err := o.find(); err != nil {
		return err
	}
	var before, after string
	if *page != "" { // now, before minutes are spent
		var err error
		if before, after, err = around(*page); err != nil {
			return err
		}
	}
	start, busy := time.Now(), load()
	var out strings.Builder
	for _, s := range settings {
		for n := range strings.SplitSeq(*workers, ",") {
			world, err := strconv.Atoi(n)
			if err != nil {
				return err
			}
			results, err := o.measure(ctx, s, world)
			if err = cmp.Or(ctx.Err(), err); err != nil {
				return fmt.Errorf("%s, %d workers: %w", s.name, world, err)
			}
			writeTables(&out, o, s, world, results)
		}
	}
	fmt.Fprintf(&out, "\n%s. Taken in %.0f s by `%s`, %d turns each; before, %s processes wanted to run.\n",
		machine(), time.Since(start).Seconds(), strings.Join(append([]string{"bin/allreduce"}, os.Args[1:]...), " "), o.rounds, busy)
	if *page != "" {
		return os.WriteFile(*page, []byte(before+out.String()+after), 0o644)
	}
	fmt.Print(out.String())
	return nil
}

// result is what one system has done at one size, by turn.
type result struct {
	times  []time.Duration // of an iteration
	cpu    []float64       // of all processes, seconds by gigabyte
	slowed []float64       // computation beside it: how many times as long
	stolen []float64       // likewise: processor time that it lacked, seconds by gigabyte
}

// measure compares the systems in one setting.
func (o options) measure(ctx context.Context, s setting, world int) (_ map[int64]map[string]*result, err error) {
	t, err := o.start(ctx, s, world)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, t.close()) }()
	out := map[int64]map[string]*result{}
	for _, bytes := range o.sizes {
		out[bytes] = map[string]*result{}
		iterations := map[string]int{}
		for _, system := range o.systems {
			out[bytes][system] = new(result)
			if _, err := t.run(system, bytes, 0); err != nil { // is it right?
				return nil, err
			}
			took, err := t.run(system, bytes, 2)
			if err != nil {
				return nil, err
			}
			iterations[system] = int(min(max(o.turn/max(took, 1), 1), 200))
		}
		for round := range o.rounds {
			order := slices.Clone(o.systems)
			if round%2 == 1 {
				slices.Reverse(order)
			}
			for _, system := range order {
				x, n := out[bytes][system], iterations[system]
				before := t.cpu(system)
				took, err := t.run(system, bytes, n)
				if err != nil {
					return nil, err
				}
				gigabytes := float64(bytes) * float64(n) / 1e9
				x.times = append(x.times, took)
				x.cpu = append(x.cpu, (t.cpu(system)-before).Seconds()/gigabytes)
				if s.rate == 0 {
					continue
				}
				alone, _, err := t.beside(func() error { return sleep(ctx, o.turn) })
				if err != nil {
					return nil, err
				}
				both, wall, err := t.beside(func() error {
					_, err := t.run(system, bytes, n)
					return err
				})
				if err != nil {
					return nil, err
				}
				x.slowed = append(x.slowed, alone/both)
				x.stolen = append(x.stolen, (1-both/alone)*float64(runtime.NumCPU())*wall.Seconds()/gigabytes)
			}
		}
		fmt.Fprintf(os.Stderr, "%s, %d workers, %s\n", s.name, world, size(bytes))
	}
	return out, nil
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// bound is the time of a ring at the rate that is left to what TCP carries.
func bound(s setting, world int, bytes int64) time.Duration {
	payload := s.rate / 8 * lab.Payload
	return time.Duration(2 * float64(world-1) / float64(world) * float64(bytes) / payload * 1e9)
}
