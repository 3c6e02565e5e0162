{{- /* "delaybridge.change" gives .doc, a YAML text, with the map .change.merge put over it, and then .change.patch applied.
     .of is the name of the value, for errors. */ -}}
{{- define "delaybridge.change" -}}
{{- $doc := fromYaml .doc }}
{{- with get $doc "Error" }}
{{- fail (printf "%s: the chart renders no YAML: %s" $.of .) }}
{{- end }}
{{- include "delaybridge.merge" (dict "into" $doc "from" (deepCopy .change.merge)) }}
{{- range $n, $step := deepCopy .change.patch }}
{{- include "delaybridge.step" (dict "doc" $doc "step" $step "at" (printf "%s.patch[%d]: %s %s" $.of $n $step.op $step.path)) }}
{{- end }}
{{- toYaml $doc }}
{{- end }}

{{- /* Maps are merged in place, all else is replaced; null removes. */ -}}
{{- define "delaybridge.merge" -}}
{{- $into := .into }}
{{- range $key, $value := .from }}
{{- if kindIs "invalid" $value }}
{{- $_ := unset $into $key }}
{{- else if and (kindIs "map" $value) (kindIs "map" (get $into $key)) }}
{{- include "delaybridge.merge" (dict "into" (get $into $key) "from" $value) }}
{{- else }}
{{- $_ := set $into $key $value }}
{{- end }}
{{- end }}
{{- end }}

{{- /* One step of a JSON patch (RFC 6902), in place. A list is replaced in the map that holds it. */ -}}
{{- define "delaybridge.step" -}}
{{- $at := .at }}
{{- $step := .step }}
{{- $path := list }}
{{- range splitList "/" (trimPrefix "/" $step.path) }}
{{- $path = append $path (. | replace "~1" "/" | replace "~0" "~") }}
{{- end }}
{{- $here := .doc }}
{{- $holder := dict }}
{{- $name := "" }}
{{- range initial $path }}
{{- if kindIs "map" $here }}
{{- if not (hasKey $here .) }}
{{- fail (printf "%s: there is no %q" $at .) }}
{{- end }}
{{- $holder = $here }}
{{- $name = . }}
{{- $here = get $here . }}
{{- else }}
{{- $here = index $here (include "delaybridge.index" (dict "list" $here "index" . "most" (sub (len $here) 1) "at" $at) | int) }}
{{- end }}
{{- if not (or (kindIs "map" $here) (kindIs "slice" $here)) }}
{{- fail (printf "%s: %q has nothing in it" $at .) }}
{{- end }}
{{- end }}
{{- $leaf := last $path }}
{{- if kindIs "map" $here }}
{{- if and (ne $step.op "add") (not (hasKey $here $leaf)) }}
{{- fail (printf "%s: there is no %q" $at $leaf) }}
{{- end }}
{{- if eq $step.op "remove" }}
{{- $_ := unset $here $leaf }}
{{- else }}
{{- $_ := set $here $leaf $step.value }}
{{- end }}
{{- else }}
{{- $most := ternary (len $here) (sub (len $here) 1) (eq $step.op "add") }}
{{- if and (eq $leaf "-") (eq $step.op "add") }}
{{- $leaf = toString (len $here) }}
{{- end }}
{{- $index := include "delaybridge.index" (dict "list" $here "index" $leaf "most" $most "at" $at) | int }}
{{- $new := slice $here 0 $index }}
{{- if ne $step.op "remove" }}
{{- $new = append $new $step.value }}
{{- end }}
{{- $rest := ternary $index (add $index 1 | int) (eq $step.op "add") }}
{{- $_ := set $holder $name (concat $new (slice $here $rest)) }}
{{- end }}
{{- end }}

{{- define "delaybridge.index" -}}
{{- if not (and (regexMatch "^(0|[1-9][0-9]*)$" .index) (le (int .index) (int .most))) }}
{{- fail (printf "%s: %q is no place in a list of %d" .at .index (len .list)) }}
{{- end }}
{{- .index }}
{{- end }}
