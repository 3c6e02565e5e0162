// Walk passes the point received three times.
package main

import "github.com/delaybridge/delaybridge/internal/failpoint"

func main() {
	for i := range 3 {
		println(i)
		failpoint.At(failpoint.Received)
	}
}
