// Allocates 64 KiB to 16 MiB by C's malloc, all magnitudes alike, and copies from and to Go's memory: cgo COUNT.
package main

// #include <stdlib.h>
import "C"

import (
	"bytes"
	"os"
	"strconv"
	"unsafe"
)

const held = 6

func main() {
	count, err := strconv.Atoi(os.Args[1])
	if err != nil {
		os.Exit(2)
	}
	ours := make([]byte, 16<<20)
	for at := range ours {
		ours[at] = byte(at * 7)
	}
	var memory [held]unsafe.Pointer
	state := uint64(1)
	for turn := 0; turn < count; turn++ {
		state = state*6364136223846793005 + 1442695040888963407
		slot := turn % held
		size := (64 << 10) << (state >> 33 % 8)
		C.free(memory[slot])
		memory[slot] = C.malloc(C.size_t(size))
		if memory[slot] == nil {
			os.Exit(1)
		}
		theirs := unsafe.Slice((*byte)(memory[slot]), size)
		copy(theirs, ours)
		if !bytes.Equal(theirs[size-4096:], ours[size-4096:size]) {
			os.Exit(1)
		}
	}
	for _, left := range memory {
		C.free(left)
	}
}
