package caramel

// ints is a heap of integers, least first. It is in the innermost loop of the
// order's search, where container/heap would allocate for each element.
type ints []int

func (q *ints) push(x int) {
	h := append(*q, x)
	i := len(h) - 1
	for i > 0 && h[(i-1)/2] > x {
		h[i] = h[(i-1)/2]
		i = (i - 1) / 2
	}
	h[i] = x
	*q = h
}

func (q *ints) pop() int {
	h := *q
	least, x := h[0], h[len(h)-1]
	h = h[:len(h)-1]
	for i := 0; len(h) > 0; {
		child := 2*i + 1
		if child+1 < len(h) && h[child+1] < h[child] {
			child++
		}
		if child >= len(h) || h[child] >= x {
			h[i] = x
			break
		}
		h[i] = h[child]
		i = child
	}
	*q = h
	return least
}
