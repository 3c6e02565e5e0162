{{- /* What concerns several values, which the schema cannot say well. */ -}}
{{- define "delaybridge.check" -}}
{{- with .Values }}
{{- range $of := list "nats" "redis" }}
{{- $v := get $.Values $of }}
{{- $keys := list }}
{{- range $key := list "credsKey" "nkeyKey" "userKey" "passwordKey" "tokenKey" "urlKey" }}
{{- if get $v $key }}
{{- $keys = append $keys $key }}
{{- if not $v.existingSecret }}
{{- fail (printf "%s.%s is set, but %s.existingSecret is not: name the Secret that has the key" $of $key $of) }}
{{- end }}
{{- end }}
{{- end }}
{{- if and $v.existingSecret (not $keys) }}
{{- fail (printf "%s.existingSecret is set, but none of its keys: set %s.passwordKey or another one" $of $of) }}
{{- end }}
{{- if and $v.user $v.userKey }}
{{- fail (printf "%s.user and %s.userKey are both set: keep one" $of $of) }}
{{- end }}
{{- if ne (empty $v.tls.certKey) (empty $v.tls.keyKey) }}
{{- fail (printf "%s.tls.certKey and %s.tls.keyKey: one is set without the other" $of $of) }}
{{- end }}
{{- end }}
{{- if and .nats.tokenKey (or .nats.passwordKey .nats.user .nats.userKey) }}
{{- fail "nats.tokenKey is set beside nats.passwordKey, nats.user or nats.userKey: a token has no user" }}
{{- end }}
{{- if ne (empty .nats.passwordKey) (and (empty .nats.user) (empty .nats.userKey)) }}
{{- fail "nats.passwordKey needs nats.user or nats.userKey, and these need nats.passwordKey; a token is nats.tokenKey" }}
{{- end }}
{{- if and .redis.url .redis.urlKey }}
{{- fail "redis.url and redis.urlKey are both set: keep one" }}
{{- end }}
{{- if not (or .redis.url .redis.urlKey) }}
{{- if or .redis.user .redis.userKey .redis.passwordKey .redis.tls.existingSecret }}
{{- fail "redis: user, password or TLS without an address: set redis.url, or redis.urlKey" }}
{{- end }}
{{- if eq (default "" .config.store) "redis" }}
{{- fail "config.store is redis: set redis.url, or redis.urlKey" }}
{{- end }}
{{- end }}
{{- if and .redis.tls.existingSecret .redis.url (not (hasPrefix "rediss://" .redis.url)) }}
{{- fail "redis.tls.existingSecret is set, but redis.url does not begin with rediss://" }}
{{- end }}
{{- if and .http.tls.clientCAKey (not .http.tls.existingSecret) }}
{{- fail "http.tls.clientCAKey is set, but http.tls.existingSecret is not: name the Secret that has the key" }}
{{- end }}
{{- if and .serviceMonitor.enabled .podMonitor.enabled }}
{{- fail "serviceMonitor.enabled and podMonitor.enabled: keep one, or each bridge is counted twice" }}
{{- end }}
{{- $own := list }}
{{- range fromYamlArray (include "delaybridge.env" $) }}
{{- $own = append $own .name }}
{{- end }}
{{- range .extraEnv }}
{{- if has .name $own }}
{{- fail (printf "extraEnv: %s is set by the chart already: use the value that it comes from" .name) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
