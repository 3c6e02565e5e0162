package client

import (
	"testing"

	"github.com/nats-io/nats.go"
)

// FuzzAnswers: whatever is answered is a result or an error.
func FuzzAnswers(f *testing.F) {
	f.Add([]byte(`{"stream":"DELAY","seq":17,"id":"a","due":"2026-11-30T09:30:00.000000Z","stored":"redis"}`), "")
	f.Add([]byte(`{"stream":"DELAY","error":{"code":400,"err_code":10189,"description":"x"}}`), "400")
	f.Add([]byte(`{"id":"a","result":"unknown"}`), "404")
	f.Add([]byte(`{"error":null}`), "x")
	f.Add([]byte(nil), "503")
	f.Fuzz(func(t *testing.T, data []byte, code string) {
		if r, err := readReceipt(nats.NewMsg("delay.to.x"), data); (err == nil) != (r.ID != "") {
			t.Errorf("receipt %+v with error %v", r, err)
		}
		m := &nats.Msg{Data: data}
		if err := failure(m); err != nil {
			t.Errorf("without the header: %v", err)
		}
		m.Header = nats.Header{"Nats-Service-Error-Code": {code}}
		if err := failure(m); err != nil && err.Error() == "" {
			t.Error("an error without a text")
		}
	})
}
