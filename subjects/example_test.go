package subjects_test

import (
	"fmt"

	"github.com/delaybridge/delaybridge/subjects"
)

func Example() {
	r, err := subjects.ParseRequest("delay", "delay.in.1h30m.orders.new")
	if err != nil {
		fmt.Println(err)
		return
	}
	d, err := subjects.ParseDelay(r.Spec)
	fmt.Println(r.Target, d, err)
	fmt.Println(subjects.CheckTarget("delay", r.Target))
	fmt.Println(subjects.CheckTarget("delay", "$SYS.x"))
	// Output:
	// orders.new 1h30m0s <nil>
	// <nil>
	// target not valid: "$SYS.x": reserved for NATS
}
