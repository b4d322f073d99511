package pair

import (
	"math"
	"math/bits"
)

// match finds the sets of one and two out of n jobs that have the least total
// weight: single[i] for a job by itself, joint[i][j] for jobs i < j together. It
// returns each job's partner, itself if it has none. Two jobs that weigh no
// less together stay apart. n is at most [MaxJobs]: the search looks at every
// set of jobs, n·2^n steps.
func match(single []float64, joint [][]float64) (partner []int, total float64) {
	n := len(single)
	least := make([]float64, 1<<n) // by set of jobs, as bits
	with := make([]int8, 1<<n)     // by set: the partner of its first job
	for set := 1; set < 1<<n; set++ {
		i := bits.TrailingZeros(uint(set))
		rest := set &^ (1 << i)
		least[set] = math.Inf(1)
		consider := func(j int, weight float64) {
			if weight < least[set]*(1-rounding) || math.IsInf(least[set], 1) {
				least[set], with[set] = weight, int8(j)
			}
		}
		for others := rest; others != 0; others &= others - 1 {
			j := bits.TrailingZeros(uint(others))
			if joint[i][j] < (single[i]+single[j])*(1-rounding) {
				consider(j, least[rest&^(1<<j)]+joint[i][j])
			}
		}
		consider(i, least[rest]+single[i])
	}
	partner = make([]int, n)
	for set := 1<<n - 1; set != 0; {
		i := bits.TrailingZeros(uint(set))
		j := int(with[set])
		partner[i], partner[j] = j, i
		set &^= 1<<i | 1<<j
	}
	return partner, least[1<<n-1]
}
