// Package splitmix is the SplitMix64 generator (Steele, Lea, Flood: Fast Splittable
// Pseudorandom Number Generators, OOPSLA 2014): pseudo-random numbers that are the
// same everywhere.
package splitmix

// Step is what the generator's state grows by from number to number.
const Step = 0x9e3779b97f4a7c15

// Mix is the number of a state.
func Mix(state uint64) uint64 {
	state = (state ^ state>>30) * 0xbf58476d1ce4e5b9
	state = (state ^ state>>27) * 0x94d049bb133111eb
	return state ^ state>>31
}

// Float is a number as one in [0, 1), of its upper 53 bits.
func Float(number uint64) float64 { return float64(number>>11) / (1 << 53) }
