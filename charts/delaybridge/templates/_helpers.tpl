{{- define "delaybridge.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 52 | trimSuffix "-" }}
{{- end }}

{{- /* At most 52 characters: Kubernetes makes a label of the StatefulSet's name and a hash. No dots: the name of
     the pod is the id of the bridge, one token of a subject. */ -}}
{{- define "delaybridge.fullname" -}}
{{- $name := include "delaybridge.name" . }}
{{- $full := printf "%s-%s" .Release.Name $name }}
{{- if contains $name .Release.Name }}
{{- $full = .Release.Name }}
{{- end }}
{{- default $full .Values.fullnameOverride | replace "." "-" | trunc 52 | trimSuffix "-" }}
{{- end }}

{{- /* What never changes. */ -}}
{{- define "delaybridge.releaseLabels" -}}
app.kubernetes.io/name: {{ include "delaybridge.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "delaybridge.selectorLabels" -}}
{{ include "delaybridge.releaseLabels" . }}
app.kubernetes.io/component: bridge
{{- end }}

{{- define "delaybridge.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{ include "delaybridge.releaseLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- /* The metadata of an object called like the release. */ -}}
{{- define "delaybridge.metadata" -}}
name: {{ include "delaybridge.fullname" . }}
namespace: {{ .Release.Namespace }}
labels:
  {{- include "delaybridge.labels" . | nindent 2 }}
{{- end }}

{{- define "delaybridge.serviceAccountName" -}}
{{- $made := ternary (include "delaybridge.fullname" .) "default" .Values.serviceAccount.create }}
{{- default $made .Values.serviceAccount.name }}
{{- end }}

{{- define "delaybridge.image" -}}
{{- with .Values.image }}
{{- if .digest }}
{{- printf "%s@%s" .repository .digest }}
{{- else }}
{{- printf "%s:%s" .repository (default $.Chart.AppVersion .tag) }}
{{- end }}
{{- end }}
{{- end }}

{{- /* The seconds of a duration such as 1m30s, rounded up. */ -}}
{{- define "delaybridge.seconds" -}}
{{- $units := dict "ns" 1e-9 "us" 1e-6 "ms" 1e-3 "s" 1 "m" 60 "h" 3600 "d" 86400 "w" 604800 }}
{{- $sum := 0.0 }}
{{- range regexFindAll "[0-9.]+(ns|us|ms|s|m|h|d|w)" . -1 }}
{{- $unit := regexFind "[a-z]+$" . }}
{{- $sum = addf $sum (mulf (trimSuffix $unit . | float64) (get $units $unit)) }}
{{- end }}
{{- ceil $sum | int }}
{{- end }}

{{- /* The bridge ends within config.drain and 5 s; the rest is for a slow node. After it Kubernetes kills: nothing that
     was acknowledged is lost then, but jobs may be delivered twice. */ -}}
{{- define "delaybridge.gracePeriod" -}}
{{- add (include "delaybridge.seconds" (default "10s" .Values.config.drain) | int) 20 }}
{{- end }}

{{- /* The configuration without what a running bridge takes over by itself: a change of the rest restarts the pod. */ -}}
{{- define "delaybridge.restartChecksum" -}}
{{- $config := deepCopy .Values.config }}
{{- range list "failover" "local" "targets" "dispatch.max_in_flight" "api.mutations" "log.level" }}
{{- $at := splitList "." . }}
{{- if eq (len $at) 1 }}
{{- $_ := unset $config (first $at) }}
{{- else if hasKey $config (first $at) }}
{{- $_ := unset (get $config (first $at)) (last $at) }}
{{- if not (get $config (first $at)) }}
{{- $_ := unset $config (first $at) }}
{{- end }}
{{- end }}
{{- end }}
{{- toJson $config | sha256sum }}
{{- end }}

{{- /* How the bridge, and the commands that talk to it, reach NATS. */ -}}
{{- define "delaybridge.natsEnv" -}}
{{- with .Values.nats }}
{{- $secret := .existingSecret }}
- name: DELAYBRIDGE_PREFIX
  value: {{ $.Values.prefix | quote }}
- name: DELAYBRIDGE_NATS_URL
  value: {{ .url | quote }}
{{- if .tlsFirst }}
- name: DELAYBRIDGE_NATS_TLS_FIRST
  value: "true"
{{- end }}
{{- with .inboxPrefix }}
- name: DELAYBRIDGE_NATS_INBOX_PREFIX
  value: {{ . | quote }}
{{- end }}
{{- with .user }}
- name: DELAYBRIDGE_NATS_USER
  value: {{ . | quote }}
{{- end }}
{{- with .userKey }}
- name: DELAYBRIDGE_NATS_USER
  valueFrom: {secretKeyRef: {name: {{ $secret | quote }}, key: {{ . | quote }}}}
{{- end }}
{{- if .credsKey }}
- name: DELAYBRIDGE_NATS_CREDS
  value: /etc/delaybridge/nats/creds
{{- end }}
{{- if .nkeyKey }}
- name: DELAYBRIDGE_NATS_NKEY
  value: /etc/delaybridge/nats/nkey
{{- end }}
{{- if or .passwordKey .tokenKey }}
- name: DELAYBRIDGE_NATS_PASSWORD_FILE
  value: /etc/delaybridge/nats/password
{{- end }}
{{- include "delaybridge.tlsEnv" (dict "of" "nats" "tls" .tls) }}
{{- end }}
{{- end }}

{{- define "delaybridge.tlsEnv" -}}
{{- $of := .of }}
{{- with .tls }}
{{- if .existingSecret }}
{{- if .caKey }}
- name: DELAYBRIDGE_{{ upper $of }}_CA
  value: /etc/delaybridge/{{ $of }}/ca.crt
{{- end }}
{{- if .certKey }}
- name: DELAYBRIDGE_{{ upper $of }}_CERT
  value: /etc/delaybridge/{{ $of }}/tls.crt
- name: DELAYBRIDGE_{{ upper $of }}_KEY
  value: /etc/delaybridge/{{ $of }}/tls.key
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- define "delaybridge.env" -}}
- name: DELAYBRIDGE_CONFIG
  value: /etc/delaybridge/delaybridge.yaml
- name: DELAYBRIDGE_ID
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- name: DELAYBRIDGE_DATA_DIR
  value: /data
- name: DELAYBRIDGE_HTTP_ADDR
  value: ":{{ .Values.http.port }}"
{{- with .Values.http.tls }}
{{- if .existingSecret }}
- name: DELAYBRIDGE_HTTP_CERT
  value: /etc/delaybridge/http/tls.crt
- name: DELAYBRIDGE_HTTP_KEY
  value: /etc/delaybridge/http/tls.key
{{- if .clientCAKey }}
- name: DELAYBRIDGE_HTTP_CLIENT_CA
  value: /etc/delaybridge/http/ca.crt
{{- end }}
{{- else }}
- name: DELAYBRIDGE_HTTP_INSECURE
  value: "true"
{{- end }}
{{- end }}
{{ include "delaybridge.natsEnv" . | trim }}
{{- with .Values.redis }}
{{- $secret := .existingSecret }}
{{- with .url }}
- name: DELAYBRIDGE_REDIS_URL
  value: {{ . | quote }}
{{- end }}
{{- with .urlKey }}
- name: DELAYBRIDGE_REDIS_URL
  valueFrom: {secretKeyRef: {name: {{ $secret | quote }}, key: {{ . | quote }}}}
{{- end }}
{{- with .user }}
- name: DELAYBRIDGE_REDIS_USER
  value: {{ . | quote }}
{{- end }}
{{- with .userKey }}
- name: DELAYBRIDGE_REDIS_USER
  valueFrom: {secretKeyRef: {name: {{ $secret | quote }}, key: {{ . | quote }}}}
{{- end }}
{{- if .passwordKey }}
- name: DELAYBRIDGE_REDIS_PASSWORD_FILE
  value: /etc/delaybridge/redis/password
{{- end }}
{{- include "delaybridge.tlsEnv" (dict "of" "redis" "tls" .tls) }}
{{- end }}
{{- end }}

{{- /* The files of secrets, by the directory that they are for. Mounted whole, without subPath, so that the kubelet
     replaces them when a secret is rotated. */ -}}
{{- define "delaybridge.natsFiles" -}}
{{- with .Values.nats }}
{{- $files := dict "creds" .credsKey "nkey" .nkeyKey "password" (default .passwordKey .tokenKey) }}
{{- include "delaybridge.files" (dict "dir" "nats" "secret" .existingSecret "files" $files) }}
{{- include "delaybridge.files" (dict "dir" "nats" "secret" .tls.existingSecret "files" (dict "ca.crt" .tls.caKey "tls.crt" .tls.certKey "tls.key" .tls.keyKey)) }}
{{- end }}
{{- end }}

{{- define "delaybridge.redisFiles" -}}
{{- with .Values.redis }}
{{- include "delaybridge.files" (dict "dir" "redis" "secret" .existingSecret "files" (dict "password" .passwordKey)) }}
{{- include "delaybridge.files" (dict "dir" "redis" "secret" .tls.existingSecret "files" (dict "ca.crt" .tls.caKey "tls.crt" .tls.certKey "tls.key" .tls.keyKey)) }}
{{- end }}
{{- end }}

{{- define "delaybridge.httpFiles" -}}
{{- with .Values.http.tls }}
{{- include "delaybridge.files" (dict "dir" "http" "secret" .existingSecret "files" (dict "tls.crt" .certKey "tls.key" .keyKey "ca.crt" .clientCAKey)) }}
{{- end }}
{{- end }}

{{- define "delaybridge.files" -}}
{{- $dir := .dir }}
{{- if and .secret (without (values .files) "") }}
- secret:
    name: {{ .secret | quote }}
    items:
      {{- range $file, $key := .files }}
      {{- if $key }}
      - {key: {{ $key | quote }}, path: {{ $dir }}/{{ $file }}}
      {{- end }}
      {{- end }}
{{- end }}
{{- end }}
