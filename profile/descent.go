package profile

import (
	"errors"
	"fmt"
	"math"

	"gonum.org/v1/gonum/stat"
)

// Descent is how a rank's loss falls, by iteration.
type Descent struct {
	Losses []float64 `json:"losses"` // of its batches
	// Drifts are what the step of an iteration takes off the loss of this rank's batch, to
	// the first order: the product of this rank's gradient and the change of the parameters.
	Drifts []float64 `json:"drifts"`
	Sum    bool      `json:"sum,omitzero"` // the gradients of a generation are summed, not averaged
}

// Walk is what all ranks' losses do, over the mean of their batches.
type Walk struct {
	Loss  float64 // mean of the iterations
	Drift float64 // what a step takes off it
	// Spread is the deviation of that from one rank's batch to another's, whatever the step is.
	Spread float64
	Sum    bool
}

// ErrNoDescent is why nothing is known of the loss.
var ErrNoDescent = errors.New("some rank's loss is not known: weft sees that of loss.backward(), and the step after it")

// Descended is the walk of the ranks' losses. Between ranks batches differ, and nothing else.
func Descended(reports []Report) (w Walk, err error) {
	var variances []float64
	for rank := range reports {
		d := reports[rank].Descent
		if d == nil || len(d.Losses) == 0 || len(d.Losses) != len(d.Drifts) {
			return Walk{}, ErrNoDescent
		}
		if first := reports[0].Descent; len(d.Losses) != len(first.Losses) {
			return Walk{}, fmt.Errorf("rank %d tells %d losses, rank 0 %d", rank, len(d.Losses), len(first.Losses))
		}
		w.Sum = w.Sum || d.Sum
	}
	if len(reports) < 2 {
		return Walk{}, errors.New("how losses differ between batches shows with two ranks or more")
	}
	n := len(reports[0].Descent.Losses)
	losses, drifts := make([]float64, len(reports)), make([]float64, len(reports))
	for i := range n {
		for rank := range reports {
			losses[rank], drifts[rank] = reports[rank].Descent.Losses[i], reports[rank].Descent.Drifts[i]
		}
		drift, variance := stat.MeanVariance(drifts, nil)
		w.Loss += stat.Mean(losses, nil) / float64(n)
		w.Drift += drift / float64(n)
		variances = append(variances, variance)
	}
	w.Spread = math.Sqrt(stat.Mean(variances, nil))
	if !(w.Loss > 0) {
		return Walk{}, fmt.Errorf("the loss is %.3g, and how far it can fall is known of positive ones only: to 0", w.Loss)
	}
	return w, nil
}
