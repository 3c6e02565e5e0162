package integration

import (
	"bufio"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// metric reads one metric of the bridge, the sum over its labels.
func (c *child) metric(name string) (sum float64, err error) {
	get := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 2 * time.Second}
	r, err := get.Get(c.http + "/metrics")
	if err != nil {
		return 0, err
	}
	defer r.Body.Close()
	found := false
	for lines := bufio.NewScanner(r.Body); lines.Scan(); {
		rest, ok := strings.CutPrefix(lines.Text(), name)
		if !ok || rest == "" || (rest[0] != '{' && rest[0] != ' ') {
			continue
		}
		v, err := strconv.ParseFloat(rest[strings.LastIndexByte(rest, ' ')+1:], 64)
		if err != nil {
			return 0, err
		}
		sum, found = sum+v, true
	}
	if !found {
		return 0, fmt.Errorf("no metric %s", name)
	}
	return sum, nil
}
