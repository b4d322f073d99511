package zoo

import (
	"fmt"
	"slices"

	"weft/internal/fault"
	"weft/internal/near"
	"weft/job"
)

// Precision is the arithmetic of convolutions and matrix products, and with it
// the element type of parameters, activations and gradients.
type Precision uint8

const (
	DefaultPrecision Precision = iota // of the device
	FP32
	TF32 // float32 in memory, multiplied with 10 bits of mantissa
	// FP16 and BF16 hold parameters, activations and gradients in 2 bytes; the
	// optimizer keeps float32 master weights and moments. FP16 needs a loss
	// scaler, whose check of all gradients precedes every update.
	FP16
	BF16
)

var precisionNames = []string{"default", "fp32", "tf32", "fp16", "bf16"}

func (p Precision) String() string { return precisionNames[p] }

// ParsePrecision is the inverse of [Precision.String].
func ParsePrecision(s string) (Precision, error) {
	return near.Parse[Precision]("precision", s, precisionNames)
}

// dtype is the type in memory.
func (p Precision) dtype() job.DType {
	switch p {
	case FP16:
		return job.Float16
	case BF16:
		return job.BFloat16
	}
	return job.Float32
}

// Device is what a worker computes on.
type Device struct {
	Name, Title string
	Memory      int64   // bytes
	Bandwidth   float64 // of its memory, bytes a second
	Rates       []Rate  // the first is the default
}

// Rate is how fast a device multiplies.
type Rate struct {
	Precision  Precision
	Peak       float64 // dense floating-point operations a second, of the data sheet
	Efficiency float64 // the share of Peak that convolutions and matrix products reach
}

// devices: memory, bandwidth and peaks are those of the public data sheets. The
// efficiencies are ours, and round: docs/zoo.md sets what follows from them
// beside measured throughputs.
var devices = []Device{
	// NVIDIA Tesla V100 GPU Accelerator data sheet, SXM2, 32 GB; no bfloat16.
	{"v100", "NVIDIA V100 SXM2 32 GB", 32e9, 900e9, []Rate{{FP32, 15.7e12, 0.75}, {FP16, 125e12, 0.4}}},
	// NVIDIA A100 Tensor Core GPU data sheet, SXM, 80 GB; without sparsity.
	{"a100", "NVIDIA A100 SXM 80 GB", 80e9, 2039e9, []Rate{{TF32, 156e12, 0.4}, {FP32, 19.5e12, 0.75}, {BF16, 312e12, 0.4}, {FP16, 312e12, 0.4}}},
	// NVIDIA H100 Tensor Core GPU data sheet, SXM, 80 GB; half of what it states
	// with sparsity.
	{"h100", "NVIDIA H100 SXM 80 GB", 80e9, 3350e9, []Rate{{TF32, 494.5e12, 0.4}, {FP32, 67e12, 0.75}, {BF16, 989.5e12, 0.4}, {FP16, 989.5e12, 0.4}}},
	// NVIDIA Tesla K80 board specification: one of the board's two GPUs, at boost
	// clock (8.74 TFLOP/s, 480 GB/s and 24 GB a board).
	{"k80", "NVIDIA K80, one of its two GPUs", 12e9, 240e9, []Rate{{FP32, 4.37e12, 0.5}}},
	// Intel Xeon Gold 6148: 2 AVX-512 units of 16 fused multiply-adds a cycle at
	// 2.2 GHz, the clock with all cores under AVX-512; one core gets at most 12 GB/s of
	// its socket's 128 GB/s; memory is the core's share of a host with 384 GB for 40
	// cores.
	{"cpu-core", "one core of an Intel Xeon Gold 6148", 9.6e9, 12e9, []Rate{{FP32, 140.8e9, 0.75}}},
}

// Devices lists all devices.
func Devices() []Device { return slices.Clone(devices) }

// DeviceNames lists the names of all devices.
func DeviceNames() []string {
	out := make([]string, len(devices))
	for i := range devices {
		out[i] = devices[i].Name
	}
	return out
}

// FindDevice is the device of that name. The error names a near one.
func FindDevice(name string) (Device, error) {
	for _, d := range devices {
		if d.Name == name {
			return d, nil
		}
	}
	return Device{}, fmt.Errorf("unknown device %q%s", fault.Short(name), near.Hint(name, DeviceNames()))
}

// rate is the device's rate at a precision.
func (d *Device) rate(p Precision) (Rate, error) {
	if p == DefaultPrecision {
		return d.Rates[0], nil
	}
	var names []string
	for _, r := range d.Rates {
		if r.Precision == p {
			return r, nil
		}
		names = append(names, r.Precision.String())
	}
	return Rate{}, fmt.Errorf("%s does not compute in %s; it has %v", d.Name, p, names)
}

// time is how long an op takes, microseconds: as long as the slower of
// arithmetic and memory (roofline). w counts elements of size bytes.
func (d *Device) time(r Rate, w work, size int64) float64 {
	return 1e6 * max(2*w.macs/(r.Efficiency*r.Peak), float64(w.elements*size)/d.Bandwidth)
}
