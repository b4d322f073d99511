// Command weft compiles communication schedules for data-parallel training.
package main

import "fmt"

// version is set by the linker; see the Makefile.
var version = "unknown"

func main() { fmt.Println("weft", version) }
