// Package heap is a binary heap of values; container/heap would box each.
package heap

// Heap holds values, the first by its order on top. Of equal ones any may be.
type Heap[T any] struct {
	before func(a, b T) bool
	all    []T
}

// New makes an empty heap in the order that before tells.
func New[T any](before func(a, b T) bool) *Heap[T] { return &Heap[T]{before: before} }

// Len is how many values there are.
func (h *Heap[T]) Len() int { return len(h.all) }

// First is the first value. There must be one.
func (h *Heap[T]) First() T { return h.all[0] }

// Clear removes all values.
func (h *Heap[T]) Clear() { h.all = h.all[:0] }

// Push adds a value.
func (h *Heap[T]) Push(x T) {
	all := append(h.all, x)
	i := len(all) - 1
	for i > 0 && h.before(x, all[(i-1)/2]) {
		all[i] = all[(i-1)/2]
		i = (i - 1) / 2
	}
	all[i] = x
	h.all = all
}

// Pop removes the first value and returns it. There must be one.
func (h *Heap[T]) Pop() T {
	all := h.all
	first, x := all[0], all[len(all)-1]
	all = all[:len(all)-1]
	for i := 0; len(all) > 0; {
		child := 2*i + 1
		if child+1 < len(all) && h.before(all[child+1], all[child]) {
			child++
		}
		if child >= len(all) || !h.before(all[child], x) {
			all[i] = x
			break
		}
		all[i] = all[child]
		i = child
	}
	h.all = all
	return first
}
