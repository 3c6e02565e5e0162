package charts

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestRefused: what is wrong stops here, and the message names it.
func TestRefused(t *testing.T) {
	t.Parallel()
	c := loadChart(t, chartDir)
	for values, want := range map[string]string{
		"replicas: 3":                                          "at '/replicas': value must be 1",
		"autoscaling: {enabled: true}":                         "at '/autoscaling/enabled': value must be false",
		"replica: 1":                                           "additional properties 'replica' not allowed",
		"nats: {uri: 'nats://x'}":                              "at '/nats': additional properties 'uri' not allowed",
		"nats: {url: localhost}":                               "at '/nats/url'",
		"nats: {url: 'nats://user:secret@nats:4222'}":          "at '/nats/url'",
		"redis: {url: 'valkey:6379'}":                          "at '/redis/url'",
		"redis: {url: 'redis://:secret@valkey'}":               "at '/redis/url'",
		"http: {port: '8090'}":                                 "at '/http/port': got string, want integer",
		"http: {port: 70000}":                                  "at '/http/port': maximum: got 70,000, want 65,535",
		"persistence: {size: 8}":                               "at '/persistence/size': got number, want string",
		"persistence: {accessMode: ReadWriteMany}":             "at '/persistence/accessMode': value must be one of 'ReadWriteOnce', 'ReadWriteOncePod'",
		"image: {digest: latest}":                              "at '/image/digest'",
		"image: {pullPolicy: Sometimes}":                       "at '/image/pullPolicy'",
		"podLabels: {a: 1}":                                    "at '/podLabels/a': got number, want string",
		"extraEnv: {A: b}":                                     "at '/extraEnv': got object, want array",
		"extraEnv: [{value: b}]":                               "at '/extraEnv/0': missing property 'name'",
		"livenessProbe: {httpGet: {}}":                         "at '/livenessProbe': additional properties 'httpGet' not allowed",
		"podDisruptionBudget: {maxUnavailable: -1}":            "at '/podDisruptionBudget/maxUnavailable'",
		"fullnameOverride: Bridge_1":                           "at '/fullnameOverride'",
		"prefix: delay.>":                                      "at '/prefix'",
		"config: {drian: 10s}":                                 "at '/config': additional properties 'drian' not allowed",
		"config: {drain: 10}":                                  "at '/config/drain': got number, want string",
		"config: {drain: ten}":                                 "at '/config/drain': 'ten' does not match pattern",
		"config: {local: {max_jobs: many}}":                    "at '/config/local/max_jobs': got string, want integer",
		"config: {log: {level: loud}}":                         "at '/config/log/level': value must be one of 'debug', 'info', 'warn', 'error'",
		"config: {id: b1}":                                     "at '/config': additional properties 'id' not allowed",
		"config: {http: {addr: ':1'}}":                         "at '/config/http': additional properties 'addr' not allowed",
		"config: {nats: {url: 'nats://x'}}":                    "at '/config': additional properties 'nats' not allowed",
		"container: {patch: [{op: test, path: /a, value: 1}]}": "at '/container/patch/0/op'",
		"container: {patch: [{op: add, path: /a}]}":            "at '/container/patch/0': missing property 'value'",
		"container: {patch: [{op: remove, path: a}]}":          "at '/container/patch/0/path'",

		"nats: {credsKey: c}":       "nats.credsKey is set, but nats.existingSecret is not",
		"nats: {existingSecret: s}": "nats.existingSecret is set, but none of its keys",
		"nats: {existingSecret: s, user: u, userKey: u, passwordKey: p}": "nats.user and nats.userKey are both set",
		"nats: {existingSecret: s, passwordKey: p}":                      "nats.passwordKey needs nats.user",
		"nats: {user: u}": "nats.passwordKey needs nats.user or nats.userKey, and these need nats.passwordKey",
		"nats: {existingSecret: s, tokenKey: t, passwordKey: p, user: u}":               "a token has no user",
		"nats: {tls: {existingSecret: s, certKey: c}}":                                  "nats.tls.certKey and nats.tls.keyKey: one is set without the other",
		"redis: {url: 'redis://a', urlKey: u, existingSecret: s}":                       "redis.url and redis.urlKey are both set",
		"redis: {passwordKey: p, existingSecret: s}":                                    "redis: user, password or TLS without an address",
		"redis: {url: 'redis://a', tls: {existingSecret: s}}":                           "redis.url does not begin with rediss://",
		"config: {store: redis}":                                                        "config.store is redis: set redis.url",
		"http: {tls: {clientCAKey: c}}":                                                 "http.tls.clientCAKey is set, but http.tls.existingSecret is not",
		"{serviceMonitor: {enabled: true}, podMonitor: {enabled: true}}":                "serviceMonitor.enabled and podMonitor.enabled: keep one",
		"extraEnv: [{name: DELAYBRIDGE_ID, value: b}]":                                  "extraEnv: DELAYBRIDGE_ID is set by the chart already",
		"container: {patch: [{op: replace, path: /nothing, value: 1}]}":                 `container.patch[0]: replace /nothing: there is no "nothing"`,
		"container: {patch: [{op: remove, path: /ports/1}]}":                            `container.patch[0]: remove /ports/1: "1" is no place in a list of 1`,
		"podTemplate: {patch: [{op: add, path: /spec/nowhere/a, value: 1}]}":            `podTemplate.patch[0]: add /spec/nowhere/a: there is no "nowhere"`,
		"statefulSet: {patch: [{op: add, path: /spec/replicas/a, value: 1}]}":           `statefulSet.patch[0]: add /spec/replicas/a: "replicas" has nothing in it`,
		"podTemplate: {patch: [{op: add, path: /spec/containers/first/env, value: 1}]}": `"first" is no place in a list of 1`,
	} {
		files, err := template(c, "delaybridge", parseValues(t, values))
		if err == nil {
			t.Errorf("%s is accepted: %d files", values, len(files))
		} else if !strings.Contains(err.Error(), want) {
			t.Errorf("%s:\n have %v\n want %s", values, err, want)
		}
	}
}

// TestNullsRefused: a null takes the default away, which must not go unseen. The chart has
// no use for that but in fields of Kubernetes.
func TestNullsRefused(t *testing.T) {
	t.Parallel()
	c := loadChart(t, chartDir)
	free := []string{"podSecurityContext", "securityContext", "resources", "labels"}
	checked := 0
	var walk func(path []string, m map[string]any)
	walk = func(path []string, m map[string]any) {
		nulls := map[string]any{}
		for key := range m {
			nulls[key] = nil
		}
		values := nulls
		for _, key := range slices.Backward(path) {
			values = map[string]any{key: values}
		}
		_, err := template(c, "delaybridge", values)
		for key, below := range m {
			checked++
			if err == nil || !strings.Contains(err.Error(), "'"+key+"'") {
				t.Errorf("%s: null for %s gives %v", strings.Join(path, "."), key, err)
			}
			if deeper, ok := below.(map[string]any); ok && len(deeper) > 0 && !slices.Contains(free, key) {
				walk(append(slices.Clone(path), key), deeper)
			}
		}
	}
	walk(nil, parseValues(t, readFile(t, "delaybridge/values.yaml")))
	if checked < 120 {
		t.Errorf("only %d keys checked", checked)
	}
}

// ofTheChart are the keys of the bridge that other values set. In its configuration they
// would be hidden by the variables of the container.
var ofTheChart = []string{
	"id", "config", "prefix", "data_dir", "http.addr", "http.insecure", "http.cert", "http.key", "http.client_ca",
	"nats.url", "nats.user", "nats.password", "nats.password_file", "nats.creds", "nats.nkey", "nats.ca", "nats.cert", "nats.key", "nats.token",
	"nats.tls_first", "nats.inbox_prefix", "nats.context",
	"redis.url", "redis.user", "redis.password", "redis.password_file", "redis.ca", "redis.cert", "redis.key",
}

// samples are right values by unit, and for keys that cannot take that of their unit.
var samples = map[string]string{
	"duration": "700ms", "jobs": "77", "deliveries": "77", "messages": "77", "probes": "7", "calls": "77", "number": "0.5", "bytes": "77MiB",
	"true or false": "true", "text": "other", "subject patterns": "['a.>', b]", "pattern=deliveries": "{'a.>': 7}", "worker=pattern": "['a-*=a.>']",
	"redis or local": "local", "same or link": "link", "local": "local", "debug, info, warn or error": "warn", "text or json": "json",
	"redis.shards": "4", "api.enabled": "false", "api.mutations": "false", "jobs.max_delay": "7d", "failover.slow_factor": "7",
}

// TestConfigHasTheKeysOfTheBridge holds the schema against docs/configuration.md.
func TestConfigHasTheKeysOfTheBridge(t *testing.T) {
	type object struct {
		Properties map[string]object
		Additional *bool `json:"additionalProperties"`
	}
	var schema object
	if err := json.Unmarshal([]byte(readFile(t, "delaybridge/values.schema.json")), &schema); err != nil {
		t.Fatal(err)
	}
	var have, want []string
	var walk func(prefix string, o object)
	walk = func(prefix string, o object) {
		if len(o.Properties) == 0 {
			have = append(have, strings.TrimSuffix(prefix, "."))
		}
		for name, below := range o.Properties {
			walk(prefix+name+".", below)
		}
	}
	walk("", schema.Properties["config"])
	for _, k := range bridgeKeys(t) {
		if !slices.Contains(ofTheChart, k[1]) {
			want = append(want, k[1])
			if samples[k[2]] == "" {
				t.Errorf("%s: no sample of the unit %q", k[1], k[2])
			}
		}
	}
	slices.Sort(have)
	slices.Sort(want)
	if !slices.Equal(have, want) {
		t.Errorf("values.schema.json has for config\n%v\n, the bridge has\n%v\nA new key needs a line there, or in ofTheChart", have, want)
	}
}

// TestMergeAndPatch: the last word is the user's.
func TestMergeAndPatch(t *testing.T) {
	p, err := podOf(t, `
podTemplate:
  merge:
    metadata: {annotations: {a: "1"}}
    spec: {hostAliases: [{ip: 10.0.0.1, hostnames: [nats]}], securityContext: {runAsUser: 1000}}
  patch:
    - {op: add, path: /metadata/annotations/b~1c, value: "2"}
    - {op: remove, path: /spec/enableServiceLinks}
    - {op: add, path: /spec/containers/0/args/-, value: --log-level}
    - {op: add, path: /spec/containers/0/args/2, value: debug}
    - {op: replace, path: /spec/containers/0/ports/0/containerPort, value: 1}
    - {op: remove, path: /spec/volumes/0/projected/sources/0}
container:
  merge: {lifecycle: {preStop: {sleep: {seconds: 3}}}, imagePullPolicy: Always}
  patch:
    - {op: add, path: /env/0, value: {name: FIRST, value: x}}
`)
	if err != nil {
		t.Fatal(err)
	}
	c := p.Spec.Containers[0]
	if p.Annotations["a"] != "1" || p.Annotations["b/c"] != "2" || p.Annotations["checksum/restart"] == "" {
		t.Errorf("annotations %v", p.Annotations)
	}
	if s := p.Spec.SecurityContext; *s.RunAsUser != 1000 || *s.FSGroup != 65532 || p.Spec.EnableServiceLinks != nil || len(p.Spec.HostAliases) != 1 {
		t.Errorf("pod %+v", p.Spec)
	}
	if !slices.Equal(c.Args, []string{"serve", "--log-level", "debug"}) || c.Ports[0].ContainerPort != 1 || c.Env[0].Name != "FIRST" || c.Env[1].Name != "DELAYBRIDGE_CONFIG" ||
		c.ImagePullPolicy != corev1.PullAlways || c.Lifecycle.PreStop.Sleep.Seconds != 3 || len(p.Spec.Volumes[0].Projected.Sources) != 0 {
		t.Errorf("container %+v", c)
	}
	if p, err = podOf(t, "podTemplate: {merge: {spec: {enableServiceLinks: null}}}"); err != nil || p.Spec.EnableServiceLinks != nil {
		t.Errorf("a null in merge removes nothing: %v", err)
	}
}

// TestSecretsAreFilesThatFollow: a file of a secret is replaced by the kubelet when the secret
// changes, unless it is mounted by subPath.
func TestSecretsAreFilesThatFollow(t *testing.T) {
	p, err := podOf(t, `
nats: {existingSecret: of-nats, credsKey: user.creds, tls: {existingSecret: nt}}
redis: {existingSecret: r, urlKey: url, passwordKey: password, tls: {existingSecret: rt, certKey: c, keyKey: k}}
http: {tls: {existingSecret: h}}`)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for _, s := range p.Spec.Volumes[0].Projected.Sources {
		if s.Secret != nil {
			for _, item := range s.Secret.Items {
				files[item.Path] = s.Secret.Name + " " + item.Key
			}
		}
	}
	want := map[string]string{
		"nats/creds": "of-nats user.creds", "nats/ca.crt": "nt ca.crt", "redis/password": "r password", "redis/ca.crt": "rt ca.crt", "redis/tls.crt": "rt c", "redis/tls.key": "rt k",
		"http/tls.crt": "h tls.crt", "http/tls.key": "h tls.key",
	}
	if !maps.Equal(files, want) {
		t.Errorf("files %v, want %v", files, want)
	}
	for _, m := range p.Spec.Containers[0].VolumeMounts {
		if m.SubPath != "" {
			t.Errorf("%s is mounted by subPath", m.MountPath)
		}
	}
}
