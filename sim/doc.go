// Package sim executes a plan in simulated time.
//
// It is a discrete-event simulation of compute lanes and links. A lane runs its
// ops in order, one at a time. A link dispatches the transfers of its program
// in order, as gates and window allow; a transfer starts when the last worker
// has reached it, occupies the wire for Cost.Wire and completes Cost.Alpha
// later (the wire model). Links of one medium share its bandwidth, and
// computation slows while a transfer is active. The result depends on nothing
// but the arguments.
package sim
