{{- /* The pods of one part, in a zone if one is given: list CONTEXT PART ZONE. */ -}}
{{- define "chaos.selector" -}}
{{- $context := index . 0 }}
{{- $part := get $context.Values (index . 1) }}
selector:
  namespaces: [{{ default $context.Release.Namespace $part.namespace }}]
  labelSelectors:
    {{- toYaml $part.labels | nindent 4 }}
  {{- with index . 2 }}
  nodeSelectors:
    topology.kubernetes.io/zone: {{ . | quote }}
  {{- end }}
{{- end }}

{{- define "chaos.bridgeKill" -}}
action: pod-kill
gracePeriod: 0
mode: one
{{- include "chaos.selector" (list . "bridge" "") }}
{{- end }}

{{- /* Failed, not killed: a killed pod may be back long before the time is over. */ -}}
{{- define "chaos.redisNodeKill" -}}
action: pod-failure
duration: {{ .experiment.duration }}
mode: one
{{- include "chaos.selector" (list . "redis" "") }}
{{- end }}

{{- define "chaos.redisAllKill" -}}
action: pod-kill
gracePeriod: 0
mode: all
{{- include "chaos.selector" (list . "redis" "") }}
{{- end }}

{{- /* Nothing gets through between bridges and another part: list CONTEXT ZONE PART ZONE. */ -}}
{{- define "chaos.partition" -}}
action: partition
direction: both
duration: {{ (index . 0).experiment.duration }}
mode: all
{{- include "chaos.selector" (list (index . 0) "bridge" (index . 1)) }}
target:
  mode: all
  {{- include "chaos.selector" (list (index . 0) (index . 2) (index . 3)) | trim | nindent 2 }}
{{- end }}

{{- define "chaos.redisPartition" -}}
{{- include "chaos.partition" (list . .experiment.zone "redis" .experiment.zone) }}
{{- end }}

{{- define "chaos.redisZonePartition" -}}
{{- include "chaos.partition" (list . .experiment.bridgeZone "redis" .experiment.redisZone) }}
{{- end }}

{{- define "chaos.natsPartition" -}}
{{- include "chaos.partition" (list . "" "nats" "") }}
{{- end }}

{{- define "chaos.redisDelay" -}}
action: delay
direction: to
duration: {{ .experiment.duration }}
delay:
  latency: {{ .experiment.latency }}
  jitter: {{ .experiment.jitter }}
mode: all
{{- include "chaos.selector" (list . "bridge" "") }}
target:
  mode: all
  {{- include "chaos.selector" (list . "redis" "") | trim | nindent 2 }}
{{- end }}

{{- /* The methods by which the log grows and becomes durable. */ -}}
{{- define "chaos.diskFault" -}}
action: fault
errno: {{ .experiment.errno }}
percent: {{ .experiment.percent }}
methods: [create, write, flush, fsync]
volumePath: {{ .Values.bridge.dataPath }}
path: {{ .Values.bridge.dataPath }}/**/*
duration: {{ .experiment.duration }}
containerNames: [{{ .Values.bridge.container }}]
mode: one
{{- include "chaos.selector" (list . "bridge" "") }}
{{- end }}
