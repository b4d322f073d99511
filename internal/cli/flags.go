package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"weft/cluster"
	"weft/internal/near"
	"weft/job"
	"weft/plan"
	"weft/policy"
	"weft/policy/caramel"
	"weft/trace/kineto"
	"weft/zoo"
)

// JobFlags say what a trace does not, and what a model of the zoo runs on.
type JobFlags struct {
	tensors, update string
	overlap         float64

	device, precision string
	model             zoo.Options

	given *pflag.FlagSet
}

// Register adds the flags.
func (f *JobFlags) Register(fs *pflag.FlagSet) {
	fs.StringVar(&f.tensors, "tensors", "", "`file` with a line for each parameter: name, elements, dtype")
	fs.StringVar(&f.update, "update", "", "update `mode`: per-tensor or global (default: as recognised)")
	fs.Float64Var(&f.overlap, "recorded-overlap", 0, "`share` by which transfers slowed the recorded computation: taken out of the job")
	fs.StringVar(&f.device, "device", "", "of a model of the zoo: `name` of the device; weft zoo lists both")
	fs.IntVar(&f.model.Batch, "batch", 0, "of a model of the zoo: `number` of samples of a worker (default: the model's)")
	fs.IntVar(&f.model.Sequence, "sequence", 0, "of a model of the zoo: `number` of tokens of a sample (default: the model's)")
	fs.StringVar(&f.precision, "precision", "", "of a model of the zoo: `kind` of arithmetic (default: the device's)")
	f.given = fs
}

// The flags that are for traces, those for models of the zoo, and the limits.
var (
	traceFlags = []string{"tensors", "recorded-overlap"}
	modelFlags = []string{"device", "batch", "sequence", "precision"}
	limitFlags = []string{"max-delay", "max-staleness", "min-update-rate", "max-memory"}
)

// changed is the first of the flags that the command line gives, or "".
func changed(fs *pflag.FlagSet, names []string) string {
	if i := slices.IndexFunc(names, fs.Changed); i >= 0 {
		return names[i]
	}
	return ""
}

// Job is the job that a command line names: it reads a trace or a job, or
// computes that of a model of the zoo where no file has the name.
func (f *JobFlags) Job(ctx context.Context, c *Console, name string) (*job.Job, error) {
	if err := checkShare("recorded-overlap", f.overlap); err != nil {
		return nil, err
	}
	o := kineto.JobOptions{Overlap: f.overlap}
	if f.update != "" {
		mode, err := job.ParseMode(f.update)
		if err != nil {
			return nil, Usagef("--update: %w", err)
		}
		o.Update = &mode
	}
	if missing(name) {
		if zoo.Known(name) {
			return f.ofModel(name, o.Update)
		}
		return nil, fmt.Errorf("%s: no file and no model of the zoo has this name%s", name, modelHint(name))
	}
	if flag := changed(f.given, modelFlags); flag != "" {
		return nil, Usagef("--%s is for a model of the zoo, and %s is a file", flag, name)
	}
	var err error
	if o.Tensors, err = c.tensors(ctx, f.tensors); err != nil {
		return nil, err
	}
	return c.job(ctx, name, o)
}

// ofModel computes the job of a model.
func (f *JobFlags) ofModel(name string, update *job.Mode) (*job.Job, error) {
	if flag := changed(f.given, traceFlags); flag != "" {
		return nil, Usagef("--%s is for a trace, and %s is a model of the zoo", flag, name)
	}
	if f.device == "" {
		return nil, Usagef("%s is a model of the zoo: give the --device that it runs on, one of %v", name, zoo.DeviceNames())
	}
	o := f.model
	if f.precision != "" {
		var err error
		if o.Precision, err = zoo.ParsePrecision(f.precision); err != nil {
			return nil, Usagef("--precision: %w", err)
		}
	}
	for i, n := range []int{o.Batch, o.Sequence} {
		if flag := []string{"batch", "sequence"}[i]; f.given.Changed(flag) && n < 1 {
			return nil, Usagef("--%s %d: at least 1", flag, n)
		}
	}
	j, err := zoo.Job(name, f.device, o)
	if err != nil {
		return nil, Usage(err)
	}
	if update != nil {
		j.Mode = *update
	}
	return j, nil
}

// DeviceMemory is the memory of the device that a model of the zoo runs on,
// bytes; 0: the job is from a file.
func (f *JobFlags) DeviceMemory() int64 {
	if d, err := zoo.FindDevice(f.device); err == nil {
		return d.Memory
	}
	return 0
}

// Limited adds to an error about memory that the limit is that of the device, if
// it is.
func (f *JobFlags) Limited(err error) error {
	if e, ok := errors.AsType[*plan.MemoryError](err); ok && e.Limit == f.DeviceMemory() {
		return fmt.Errorf("%w; the limit is the memory of a %s: --max-memory sets another", err, f.device)
	}
	return err
}

// modelHint ends a message about a name that may have meant a model.
func modelHint(name string) string {
	if model := near.Nearest(name, zoo.Names()); model != "" {
		return fmt.Sprintf("; did you mean %q?", model)
	}
	return "; weft zoo lists them"
}

// NoJob reports the first of the flags that say nothing without a job.
func NoJob(fs *pflag.FlagSet) error {
	if flag := changed(fs, slices.Concat(traceFlags, modelFlags, limitFlags, []string{"update"})); flag != "" {
		return Usagef("--%s is about a job: give --job", flag)
	}
	return nil
}

// ClusterFlags name a cluster file or describe a cluster of equal workers.
type ClusterFlags struct {
	file             string
	workers, perNode int
	servers          int
	dedicated        bool
	specs            []string
	overlap          float64
	only             []string

	links []cluster.Link // parsed specs
}

// Register adds the flags.
func (f *ClusterFlags) Register(fs *pflag.FlagSet) {
	fs.StringVar(&f.file, "cluster", "", "cluster `file` (YAML), in place of --link, --workers, --per-node, --servers, --overlap")
	fs.StringArrayVar(&f.specs, "link", nil, "`spec` of a link between nodes: bandwidth and latency of one step, as in 10Gbit,25us; again for a second link")
	fs.IntVar(&f.workers, "workers", 0, "`number` of workers (default: as recorded)")
	fs.IntVar(&f.perNode, "per-node", 1, "`number` of workers a node")
	fs.StringSliceVar(&f.only, "links", nil, "`names` of the links to use, as in eth0,eth1 (default: all)")
	fs.IntVar(&f.servers, "servers", 0, "`number` of parameter servers, spread over the workers' hosts (default: none, and in a comparison one a node where a policy needs some)")
	fs.BoolVar(&f.dedicated, "dedicated", false, "the servers of --servers have hosts of their own")
	fs.Float64Var(&f.overlap, "overlap", 0, "a transfer slows computation by this `share`: rate 1/(1+share)")
}

// Check reports what is wrong with the flags by themselves, before any input is
// read.
func (f *ClusterFlags) Check(fs *pflag.FlagSet) error {
	if f.file == "" && len(f.specs) == 0 {
		return Usagef("no network: give --link, as in --link 10Gbit,25us, or --cluster FILE")
	}
	for _, name := range []string{"link", "workers", "per-node", "servers", "dedicated", "overlap"} {
		if f.file != "" && fs.Changed(name) {
			return Usagef("--cluster and --%s exclude each other: the file describes the whole cluster", name)
		}
	}
	if fs.Changed("workers") && f.workers < 1 {
		return Usagef("--workers %d: at least 1", f.workers)
	}
	if fs.Changed("servers") && f.servers < 1 {
		return Usagef("--servers %d: at least 1", f.servers)
	}
	if f.dedicated && f.servers == 0 {
		return Usagef("--dedicated says where parameter servers are: give --servers, how many")
	}
	if f.perNode < 1 {
		return Usagef("--per-node %d: at least 1", f.perNode)
	}
	if err := checkShare("overlap", f.overlap); err != nil {
		return err
	}
	f.links = nil
	for _, spec := range f.specs {
		l, err := cluster.ParseLink(spec)
		if err != nil {
			return Usagef("--link: %w", err)
		}
		if l.Algorithm != cluster.Ring && f.perNode > 1 {
			return Usagef("--link: %v with --per-node %d runs inside the nodes too: describe the link there, inside, in a cluster file", l.Algorithm, f.perNode)
		}
		if slices.ContainsFunc(f.links, func(o cluster.Link) bool { return o.Name == l.Name }) {
			if hasName(spec) {
				return Usagef("--link: %q is already the name of another link", l.Name)
			}
			l.Name += strconv.Itoa(len(f.links) + 1) // net, net2, net3
		}
		f.links = append(f.links, l)
	}
	return nil
}

// CheckFor reports what the flags say in vain to the one policy that is asked for.
func (f *ClusterFlags) CheckFor(fs *pflag.FlagSet, p policy.Policy) error {
	for _, name := range []string{"servers", "dedicated"} {
		if fs.Changed(name) && p.Class != policy.Servers {
			return Usagef("--%s is for policies with parameter servers, not %s", name, p.Name)
		}
	}
	return nil
}

// hasName reports whether the spec of a link gives its name.
func hasName(spec string) bool {
	for part := range strings.SplitSeq(spec, ",") {
		if key, _, found := strings.Cut(strings.TrimSpace(part), "="); found && key == "name" {
			return true
		}
	}
	return false
}

// checkShare wants what transfers slow computation by to be a share.
func checkShare(flag string, share float64) error {
	if !(share >= 0 && share <= cluster.MaxFactor) {
		return Usagef("--%s %v: give a share from 0 to %d, as 0.19", flag, share, cluster.MaxFactor)
	}
	return nil
}

// Cluster is the cluster that a command line asks for, for this job.
func (f *ClusterFlags) Cluster(ctx context.Context, c *Console, j *job.Job) (*cluster.Cluster, error) {
	if f.file != "" {
		out, err := c.cluster(ctx, f.file)
		if err != nil {
			return nil, err
		}
		return f.chosen(out)
	}
	workers := f.workers
	if workers == 0 {
		workers = j.World
	}
	if workers == 0 {
		return nil, Usagef("the input does not tell how many workers were recorded: give --workers")
	}
	if workers%f.perNode != 0 {
		return nil, Usagef("--per-node %d does not divide the number of workers, %d", f.perNode, workers)
	}
	out := &cluster.Cluster{Nodes: workers / f.perNode, PerNode: f.perNode, Links: f.links, Overlap: f.overlap, Scale: 1}
	if f.servers > 0 {
		out.Servers = &cluster.Servers{Count: f.servers, Colocated: !f.dedicated}
	}
	if err := out.Validate(); err != nil {
		return nil, Usage(err)
	}
	return f.chosen(out)
}

// chosen keeps the links that --links names.
func (f *ClusterFlags) chosen(c *cluster.Cluster) (*cluster.Cluster, error) {
	if len(f.only) == 0 {
		return c, nil
	}
	out, err := c.Only(f.only...)
	if err != nil {
		return nil, Usagef("--links: %w", err)
	}
	return out, nil
}

// Flags say all that an execution needs: the job and the cluster.
type Flags struct {
	JobFlags
	ClusterFlags
}

// Register adds the flags.
func (f *Flags) Register(fs *pflag.FlagSet) {
	f.JobFlags.Register(fs)
	f.ClusterFlags.Register(fs)
}

// Load reads the job of that name, and the cluster for it.
func (f *Flags) Load(ctx context.Context, c *Console, name string) (*job.Job, *cluster.Cluster, error) {
	j, err := f.Job(ctx, c, name)
	if err != nil {
		return nil, nil, err
	}
	on, err := f.Cluster(ctx, c, j)
	return j, on, err
}

// PolicyFlags are the policies' options.
type PolicyFlags struct{ Options policy.Options }

// Register adds the flags.
func (f *PolicyFlags) Register(fs *pflag.FlagSet) {
	o := &f.Options
	fs.Var(quantity[int64]{&o.Bucket, cluster.ParseSize}, "bucket", "ddp: bucket `size` (default 25MiB)")
	fs.Var(quantity[int64]{&o.FirstBucket, cluster.ParseSize}, "first-bucket", "ddp: `size` of the first bucket (default 1MiB)")
	fs.Var(quantity[int64]{&o.Fusion, cluster.ParseSize}, "fusion", "horovod: fusion threshold, a `size` (default 128MiB)")
	fs.Var(quantity[float64]{&o.Cycle, cluster.ParseLatency}, "cycle", "horovod: cycle `time` (default 1ms)")
	fs.Int64Var(&o.Slice, "slice", 0, "p3: `elements` of a slice (default 40000)")
	fs.Int64Var(&o.Partition, "partition", 0, "bytescheduler: `elements` of a partition (default: searched for)")
	fs.Var(quantity[int64]{&o.Credit, cluster.ParseSize}, "credit", "bytescheduler: credit, a `size` (default: searched for)")
	fs.Int64Var(&o.Unit, "unit", 0, "us-byte: `elements` of a unit (default: searched for)")
	fs.Var(quantity[int64]{&o.Group, cluster.ParseSize}, "group", "dear: `size` of a group (default: searched for)")
	fs.StringSliceVar(&o.Without, "without", nil, "caramel: `parts` to leave out, of "+strings.Join(caramel.Parts, ", "))
	fs.IntVar(&o.InFlight, "in-flight", 1, "policies behind a barrier, ps and tictac: `number` of transfers at once on a link")
	fs.BoolVar(&o.Spread, "spread", false, "policies that use one link, over all: each bucket is cut into a part a link, which all end together")
	fs.BoolVar(&o.Copies, "copies", false, "plans copy gradients into buckets and out, as recorded (default: reduce in place)")
}

// readers are the policies that read a flag, of those that not all read.
var readers = map[string][]string{
	"bucket": {"ddp"}, "first-bucket": {"ddp"}, "fusion": {"horovod"}, "cycle": {"horovod"},
	"slice": {"p3", "p3-ps"}, "partition": {"bytescheduler"}, "credit": {"bytescheduler"}, "unit": {"us-byte"}, "group": {"dear"}, "without": {"caramel"},
}

// crossing names the policies that choose for themselves how much is in flight.
var crossing = []string{"p3", "bytescheduler", "bytescheduler-bo", "us-byte", "dear", "caramel", "p3-ps", "dynacomm"}

// Check reports what is wrong with the flags. policy is the only one that they
// are for, or "" if they are for all.
func (f *PolicyFlags) Check(fs *pflag.FlagSet, policy string) error {
	if f.Options.InFlight < 1 {
		return Usagef("--in-flight %d: at least 1", f.Options.InFlight)
	}
	for name, n := range map[string]int64{"slice": f.Options.Slice, "partition": f.Options.Partition, "unit": f.Options.Unit} {
		if fs.Changed(name) && n < 1 {
			return Usagef("--%s %d: at least 1", name, n)
		}
	}
	if err := caramel.CheckParts(f.Options.Without); err != nil {
		return Usagef("--without: %w", err)
	}
	if (f.Options.Partition > 0) != (f.Options.Credit > 0) {
		return Usagef("--partition and --credit go together: without them both are searched for")
	}
	if policy == "" {
		return nil
	}
	if fs.Changed("spread") && (policy == "auto" || policy == "deft") {
		return Usagef("--spread is not for %s, which uses several links by itself", policy)
	}
	if fs.Changed("in-flight") && slices.Contains(crossing, policy) {
		return Usagef("--in-flight is not for %s, which chooses for itself how much is in flight", policy)
	}
	for _, name := range slices.Sorted(maps.Keys(readers)) {
		if fs.Changed(name) && !slices.Contains(readers[name], policy) {
			return Usagef("--%s is for policy %s, not %s", name, strings.Join(readers[name], " or "), policy)
		}
	}
	return nil
}

// FlagError says what is wrong with the value of a flag in words of ours.
func FlagError(err error) error {
	bad, ok := errors.AsType[*pflag.InvalidValueError](err)
	if !ok {
		return err
	}
	flag := bad.GetFlag()
	if what, ok := kinds[flag.Value.Type()]; ok {
		return fmt.Errorf("--%s %q: not %s", flag.Name, bad.GetValue(), what)
	}
	return fmt.Errorf("--%s: %w", flag.Name, bad.Unwrap())
}

// kinds are the types of flags that pflag reads.
var kinds = map[string]string{
	"int": "a whole number", "float64": "a number, such as 0.4", "bool": "true or false",
}

// quantity is a flag of a number with a unit.
type quantity[T int64 | float64] struct {
	to    *T
	parse func(string) (T, error)
}

func (q quantity[T]) String() string { return "" } // the help states the default

func (q quantity[T]) Type() string { return "" }

func (q quantity[T]) Set(s string) error {
	v, err := q.parse(s)
	if err == nil && v == 0 {
		err = fmt.Errorf("%q: give more than 0", s)
	}
	*q.to = v
	return err
}

// LimitFlags are what a user allows of delayed updates.
type LimitFlags struct{ limits plan.Limits }

// Register adds the flags.
func (f *LimitFlags) Register(fs *pflag.FlagSet) {
	fs.IntVar(&f.limits.MaxDelay, "max-delay", 0, "largest delay D allowed, `iterations`; alone, and not 0, it also sets --max-staleness to D+2 and --min-update-rate to 1/3")
	fs.IntVar(&f.limits.MaxStaleness, "max-staleness", 0, "largest staleness allowed, `iterations`")
	fs.Float64Var(&f.limits.MinUpdateRate, "min-update-rate", 1, "smallest update `rate` allowed, updates an iteration")
	f.RegisterMemory(fs)
}

// RegisterMemory adds only the flag about memory.
func (f *LimitFlags) RegisterMemory(fs *pflag.FlagSet) {
	fs.Var(quantity[int64]{&f.limits.MaxMemory, cluster.ParseSize}, "max-memory", "largest `size` of a worker's memory allowed, all that training needs (default: that of the --device; otherwise no limit)")
}

// Check reports what is wrong with the flags.
func (f *LimitFlags) Check() error {
	switch l := f.limits; {
	case l.MaxDelay < 0:
		return Usagef("--max-delay %d: 0 or more", l.MaxDelay)
	case l.MaxStaleness < 0:
		return Usagef("--max-staleness %d: 0 or more", l.MaxStaleness)
	case !(l.MinUpdateRate >= 0 && l.MinUpdateRate <= 1):
		return Usagef("--min-update-rate %v: give a rate from 0 to 1, as 0.5", l.MinUpdateRate)
	}
	return nil
}

// Limits are the limits that the flags set. device is the memory of a worker's
// device, bytes, which is the limit unless a flag sets another; 0: none.
func (f *LimitFlags) Limits(fs *pflag.FlagSet, device int64) plan.Limits {
	l := f.limits
	if fs.Changed("max-delay") && !fs.Changed("max-staleness") && !fs.Changed("min-update-rate") {
		l = plan.DelayLimits(l.MaxDelay)
	}
	l.MaxMemory = cmp.Or(f.limits.MaxMemory, device)
	return l
}
