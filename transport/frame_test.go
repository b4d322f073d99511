package transport

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"hash/crc32"
	"io"
	"math"
	"testing"
)

// The layout of docs/formats/frames.md, byte by byte.
func TestFrameLayout(t *testing.T) {
	f := frame{kind: frameData, tag: Tag{0x0102, 0x1112131415161718, 0x21222324}, length: 2, room: 0x00010203}
	var h [headerSize]byte
	f.encode(&h, 0x3132333435363738, []byte("ab"))
	want := "77656674" + "01" + "04" + "0201" + "24232221" + "00000000" +
		"3837363534333231" + "1817161514131211" + "0200000000000000" + "03020100" + "00000000"
	if got := hex.EncodeToString(h[:]); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}

	f.sum = true
	f.encode(&h, 0x3132333435363738, []byte("ab"))
	covered, _ := hex.DecodeString(want)
	covered[12] = 1
	sum := crc32.Checksum(append(covered[:44], "ab"...), crc32.MakeTable(0x82f63b78))
	if got := binary.LittleEndian.Uint32(h[44:]); got != sum {
		t.Errorf("checksum %#x, want %#x", got, sum)
	}
}

func encoded(f frame, epoch uint64, data string) []byte {
	var h [headerSize]byte
	f.encode(&h, epoch, []byte(data))
	return append(h[:], data...)
}

func TestFrameRefused(t *testing.T) {
	data := frame{kind: frameData, length: 2}
	for _, tc := range []struct {
		name string
		f    frame
		edit func(b []byte)
		want string
	}{
		{"magic", data, func(b []byte) { copy(b, "GET ") }, `not a frame: it begins with "GET "`},
		{"version", data, func(b []byte) { b[4] = 2 }, "a frame of version 2, where this program has version 1"},
		{"epoch", data, func(b []byte) { b[16] = 8 }, "a frame of job epoch 8 in epoch 9"},
		{"no kind", data, func(b []byte) { b[5] = 0 }, "a frame of unknown kind 0"},
		{"kind", data, func(b []byte) { b[5] = 7 }, "a frame of unknown kind 7"},
		{"flags", data, func(b []byte) { b[13] = 1 }, "a frame with unknown flags 0x100"},
		{"sum that is none", data, func(b []byte) { b[44] = 1 }, "a frame without a checksum that has one"},
		{"length", frame{kind: frameAnnounce, length: math.MaxInt + 1}, nil, "a frame of 9223372036854775808 bytes"},
		{"too long for its kind", frame{kind: frameEager, length: Eager + 1}, nil, "65537 bytes in a frame for at most 65536"},
		{"goodbye with a message", frame{kind: frameBye, length: 1}, nil, "a frame of kind 6 with a message"},
		{"window with a tag", frame{kind: frameWindow, tag: Tag{Op: 1}}, nil, "a frame of kind 5 with a message"},
		{"room", frame{kind: frameWindow, room: Window + 1}, nil, "a frame that gives 1048577 bytes back to a window of 1048576"},
	} {
		b := encoded(tc.f, 9, "")
		if tc.edit != nil {
			tc.edit(b)
		}
		r := frameReader{r: bufio.NewReader(bytes.NewReader(b)), epoch: 9}
		if err := r.next(new(frame)); err == nil || err.Error() != tc.want {
			t.Errorf("%s: got %v, want %s", tc.name, err, tc.want)
		}
	}
}

// Every bit of a frame with a checksum counts.
func TestFrameChecksum(t *testing.T) {
	for _, f := range []frame{
		{kind: frameEager, sum: true, tag: Tag{1, 2, 3}, length: 5, room: 7},
		{kind: frameReady, sum: true, tag: Tag{1, 2, 3}, length: 5, room: 7},
	} {
		data := ""
		if f.hasData() {
			data = "hello"
		}
		for bit := range (headerSize + len(data)) * 8 {
			b := encoded(f, 9, data)
			b[bit/8] ^= 1 << (bit % 8)
			r := frameReader{r: bufio.NewReader(bytes.NewReader(b)), epoch: 9}
			var got frame
			err := r.next(&got)
			if err == nil && got.hasData() && got.length < 1<<20 {
				err = r.data(&got, make([]byte, got.length))
			}
			if err == nil && got.length < 1<<20 {
				t.Errorf("kind %d: bit %d of byte %d flipped, and nobody sees it", f.kind, bit%8, bit/8)
			}
		}
	}
}

func TestFrameCutOff(t *testing.T) {
	whole := encoded(frame{kind: frameData, length: 5}, 9, "hello")
	for n := range whole {
		r := frameReader{r: bufio.NewReader(bytes.NewReader(whole[:n])), epoch: 9}
		var f frame
		err := r.next(&f)
		if err == nil {
			err = r.data(&f, make([]byte, f.length))
		}
		want := io.ErrUnexpectedEOF
		if n == 0 {
			want = io.EOF
		}
		if err != want {
			t.Errorf("%d bytes: %v, want %v", n, err, want)
		}
	}
}

func TestFrameAllocatesNothing(t *testing.T) {
	data := make([]byte, 4096)
	var stream bytes.Buffer
	r := frameReader{r: bufio.NewReaderSize(&stream, 8192), epoch: 9}
	var h [headerSize]byte
	allocs := testing.AllocsPerRun(100, func() {
		f := frame{kind: frameData, sum: true, tag: Tag{1, 2, 3}, length: uint64(len(data))}
		f.encode(&h, 9, data)
		stream.Write(h[:])
		stream.Write(data)
		var got frame
		if err := r.next(&got); err != nil {
			t.Fatal(err)
		}
		if err := r.data(&got, data); err != nil {
			t.Fatal(err)
		}
	})
	if allocs != 0 {
		t.Errorf("%v allocations per frame", allocs)
	}
}

// Whatever comes, the reader ends, takes no more than it was given, and what it
// accepts is what a sender would have written.
func FuzzFrame(f *testing.F) {
	f.Fuzz(func(t *testing.T, stream []byte) {
		const bound = 1 << 10
		r := frameReader{r: bufio.NewReaderSize(bytes.NewReader(stream), 64), epoch: 9}
		rest := stream
		var buf [bound]byte
		for {
			var got frame
			if err := r.next(&got); err != nil {
				return
			}
			var data []byte
			if got.hasData() {
				if got.length > bound {
					return
				}
				data = buf[:got.length]
				if err := r.data(&got, data); err != nil {
					return
				}
			}
			var h [headerSize]byte
			got.encode(&h, 9, data)
			again := append(h[:], data...)
			if !bytes.HasPrefix(rest, again) {
				t.Fatalf("accepted %x\nwould be written as %x", rest[:min(len(rest), len(again))], again)
			}
			rest = rest[len(again):]
		}
	})
}
