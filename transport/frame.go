package transport

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"math"
)

// What travels on a connection, once it is authenticated, are frames: a header,
// and after those of two kinds as many bytes as it says. docs/formats/frames.md has the layout
// and the rules; it is to be changed with this file.

// frameVersion is that of frames and of the handshake.
const frameVersion = 1

const headerSize = 48

var magic = [4]byte{'w', 'e', 'f', 't'}

type frameKind uint8

const (
	frameEager    frameKind = 1 + iota // a message that takes room of the window
	frameAnnounce                      // a message of that length waits at its sender
	frameReady                         // a receiver waits for a message of that length
	frameData                          // a message that Ready has asked for
	frameWindow                        // nothing but the room that it gives back
	frameBye                           // the last frame of its sender on this connection
)

// flagChecksum says that the header's last field is a checksum.
const flagChecksum = 1

// frame is a header, without what is the same for a whole connection.
type frame struct {
	kind   frameKind
	sum    bool // has a checksum
	tag    Tag
	length uint64 // of the message, bytes
	room   uint32 // given back to the sender's window, bytes
	crc    uint32
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// hasData tells whether the message itself follows the header.
func (f *frame) hasData() bool { return f.kind == frameEager || f.kind == frameData }

// encode writes the header of a frame and its data; the checksum covers both,
// and is made here.
func (f *frame) encode(h *[headerSize]byte, epoch uint64, data []byte) {
	flags := uint32(0)
	if f.sum {
		flags = flagChecksum
	}
	le := binary.LittleEndian
	copy(h[0:], magic[:])
	h[4] = frameVersion
	h[5] = byte(f.kind)
	le.PutUint16(h[6:], f.tag.Channel)
	le.PutUint32(h[8:], f.tag.Chunk)
	le.PutUint32(h[12:], flags)
	le.PutUint64(h[16:], epoch)
	le.PutUint64(h[24:], f.tag.Op)
	le.PutUint64(h[32:], f.length)
	le.PutUint32(h[40:], f.room)
	le.PutUint32(h[44:], 0)
	if f.sum {
		le.PutUint32(h[44:], crc32.Update(crc32.Update(0, castagnoli, h[:44]), castagnoli, data))
	}
}

// decode reads a header. The checksum is not looked at.
func (f *frame) decode(h *[headerSize]byte, epoch uint64) error {
	le := binary.LittleEndian
	flags := le.Uint32(h[12:])
	*f = frame{
		kind:   frameKind(h[5]),
		sum:    flags&flagChecksum != 0,
		tag:    Tag{le.Uint16(h[6:]), le.Uint64(h[24:]), le.Uint32(h[8:])},
		length: le.Uint64(h[32:]),
		room:   le.Uint32(h[40:]),
		crc:    le.Uint32(h[44:]),
	}
	switch got := le.Uint64(h[16:]); {
	case [4]byte(h[:4]) != magic:
		return fmt.Errorf("not a frame: it begins with %q", h[:4])
	case h[4] != frameVersion:
		return fmt.Errorf("a frame of version %d, where this program has version %d", h[4], frameVersion)
	case got != epoch:
		return fmt.Errorf("a frame of job epoch %d in epoch %d", got, epoch)
	case f.kind < frameEager || f.kind > frameBye:
		return fmt.Errorf("a frame of unknown kind %d", f.kind)
	case flags&^flagChecksum != 0:
		return fmt.Errorf("a frame with unknown flags %#x", flags)
	case !f.sum && f.crc != 0:
		return fmt.Errorf("a frame without a checksum that has one")
	case f.length > math.MaxInt:
		return fmt.Errorf("a frame of %d bytes", f.length)
	case f.kind == frameEager && f.length > Eager:
		return fmt.Errorf("%d bytes in a frame for at most %d", f.length, Eager)
	case f.kind >= frameWindow && (f.length != 0 || f.tag != Tag{}):
		return fmt.Errorf("a frame of kind %d with a message", f.kind)
	case f.room > Window:
		return fmt.Errorf("a frame that gives %d bytes back to a window of %d", f.room, Window)
	}
	return nil
}

// frameReader reads frames. It allocates nothing: who uses it provides the
// memory for data, in a length of its own choice.
type frameReader struct {
	r     *bufio.Reader
	epoch uint64
	wake  *wake // nil: the connection has none
	head  [headerSize]byte
}

// next reads a header. If the frame has data, data or discard is to be called next. The error at
// the end of the stream is io.EOF between frames.
func (r *frameReader) next(f *frame) error {
	if _, err := io.ReadFull(r.r, r.head[:]); err != nil {
		return err
	}
	if err := f.decode(&r.head, r.epoch); err != nil {
		return err
	}
	if f.hasData() {
		return nil
	}
	return r.check(f, nil)
}

// data reads the data of the frame that next has found into dst, which has its
// length.
func (r *frameReader) data(f *frame, dst []byte) error {
	for rest := dst; len(rest) > 0; {
		r.wake.at(len(rest))
		n, err := r.r.Read(rest)
		if rest = rest[n:]; err != nil && len(rest) > 0 {
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return err
		}
	}
	r.wake.at(1)
	return r.check(f, dst)
}

// discard skips that data.
func (r *frameReader) discard(f *frame) error {
	_, err := r.r.Discard(int(f.length))
	return err
}

func (r *frameReader) check(f *frame, data []byte) error {
	if !f.sum {
		return nil
	}
	clear(r.head[44:])
	if crc32.Update(crc32.Update(0, castagnoli, r.head[:44]), castagnoli, data) != f.crc {
		return ErrChecksum
	}
	return nil
}
