package timeline

import "weft/job"

// rx is the running example under WFBP, worked by hand. Four layers, backward
// times b = (4,4,2,8) from layer 1 to 4, forward times f = (2,2,1,4), one
// serial link, all-reduces of 1, 2, 3 and 7 bytes that take c = (3,4,5,9).
//
// The backward pass runs layers 4, 3, 2, 1: gradients are ready at
// 8, 8+2 = 10, 10+4 = 14, 14+4 = 18. The link takes them in this order:
//
//	bucket 4: 8 to 8+9 = 17
//	bucket 3: ready 10, queued until 17, 17 to 17+5 = 22
//	bucket 2: ready 14, queued until 22, 22 to 22+4 = 26
//	bucket 1: ready 18, queued until 26, 26 to 26+3 = 29
//
// The forward pass waits from 18 to 29 and runs layers 1 to 4: 29 to 31, 33,
// 34, 38.
func rx(stands ...int) *Timeline {
	back, forw := uint8(job.Backward), uint8(job.Forward)
	op := func(name string, phase uint8, start, end float64) Span {
		return Span{Kind: Compute, Phase: phase, Name: name, Start: start, End: end, Bucket: -1}
	}
	link := func(kind SpanKind, name string, bucket int32, bytes int64, start, end float64) Span {
		return Span{Lane: 1, Kind: kind, Name: name, Bucket: bucket, Bytes: bytes, Start: start, End: end}
	}
	t := &Timeline{
		Name:  "RX",
		Ranks: []Rank{{Rank: 0, Stands: stands}},
		Lanes: []Lane{{"gpu", Device}, {"10Gbit", Link}},
		Spans: []Span{
			op("b4", back, 0, 8),                                       // 0
			op("b3", back, 8, 10),                                      // 1
			link(Transfer, "ar4", 0, 7, 8, 17),                         // 2
			op("b2", back, 10, 14),                                     // 3
			link(Queued, "ar3", 1, 3, 10, 17),                          // 4
			op("b1", back, 14, 18),                                     // 5
			link(Queued, "ar2", 2, 2, 14, 22),                          // 6
			link(Transfer, "ar3", 1, 3, 17, 22),                        // 7
			{Kind: Wait, Name: "wait", Start: 18, End: 29, Bucket: -1}, // 8
			link(Queued, "ar1", 3, 1, 18, 26),                          // 9
			link(Transfer, "ar2", 2, 2, 22, 26),                        // 10
			link(Transfer, "ar1", 3, 1, 26, 29),                        // 11
			op("f1", forw, 29, 31),                                     // 12
			op("f2", forw, 31, 33),                                     // 13
			op("f3", forw, 33, 34),                                     // 14
			op("f4", forw, 34, 38),                                     // 15
		},
		Flows:      []Flow{{0, 2}, {1, 7}, {3, 10}, {5, 11}, {11, 12}},
		Iterations: []float64{0, 38},
	}
	return t
}
