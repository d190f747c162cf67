{{/* Labels that select the series of this release, and of no other. */}}
{{- define "afterword.series" -}}
{{- if .Values.prometheusRule.selector -}}
{{ .Values.prometheusRule.selector }}
{{- else if .Values.serviceMonitor.enabled -}}
{{- /* the operator names a job after its Service */ -}}
namespace="{{ .Release.Namespace }}",job=~"{{ include "afterword.fullname" . }}-.+"
{{- else -}}
namespace="{{ .Release.Namespace }}"
{{- end -}}
{{- end }}

{{/* An expression of rules/afterword.yaml, about the series of this release: .root, .expr. */}}
{{- define "afterword.ofThisRelease" -}}
{{- $series := include "afterword.series" .root -}}
{{- $named := regexReplaceAll "\\b(afterword_[a-z_]+)([^a-z_{]|$)" .expr "${1}{}${2}" -}}
{{- regexReplaceAll "\\{,?" (regexReplaceAll "\\b(afterword_[a-z_]+)\\{" $named (printf "${1}{%s," $series)) "{" | replace ",}" "}" -}}
{{- end }}

{{/* Roles that must be there: one that sleeps without work may be away. */}}
{{- define "afterword.expectedRoles" -}}
{{- range $component := include "afterword.components" . | trim | splitList " " | compact -}}
{{- $values := index $.Values $component -}}
{{- $least := ternary $values.replicas $values.autoscaling.minReplicas (eq $values.autoscaling.kind "none") -}}
{{- if gt (int $least) 0 }}{{ ternary "serve" $component (eq $component "server") }} {{ end -}}
{{- if and $.Values.singleProcess (eq $component "segmenter") }}summarizer archiver {{ end -}}
{{- end -}}
{{- end }}

{{/* The alerts of rules/afterword.yaml, as the values have them: a list. */}}
{{- define "afterword.alerts" -}}
{{- $given := .Values.prometheusRule -}}
{{- $rules := list -}}
{{- range $rule := (index (.Files.Get "rules/afterword.yaml" | fromYaml).groups 0).rules -}}
{{- $own := get $given.alerts $rule.alert | default dict -}}
{{- $threshold := dig "threshold" "" $own | toString -}}
{{- if eq $rule.alert "AfterwordRoleMissing" -}}
{{- $absent := list -}}
{{- range include "afterword.expectedRoles" $ | trim | splitList " " | compact -}}
{{- $absent = append $absent (printf "absent(afterword_build_info{role=%q})" .) -}}
{{- end -}}
{{- $_ := set $rule "expr" (join " or " $absent) -}}
{{- end -}}
{{- if and (eq $rule.alert "AfterwordStateLarge") (not $threshold) -}}
{{- $threshold = div (mul 8 (include "afterword.bytes" $.Values.segmenter.persistence.size | int64)) 10 | toString -}}
{{- $_ := set $rule.annotations "description" (printf "A full disk stops the segmenter. Its volume has %s." $.Values.segmenter.persistence.size) -}}
{{- end -}}
{{- if not (not $threshold) -}}
{{- $limit := "> [0-9.e]+\\s*$" -}}
{{- if not (regexMatch $limit $rule.expr) -}}
{{- fail (printf "prometheusRule.alerts.%s.threshold: the alert has none" $rule.alert) -}}
{{- end -}}
{{- $_ := set $rule "expr" (regexReplaceAll $limit $rule.expr (printf "> %s" $threshold)) -}}
{{- end -}}
{{- $_ := set $rule "expr" (include "afterword.ofThisRelease" (dict "root" $ "expr" $rule.expr)) -}}
{{- with get $own "for" -}}
{{- $_ := set $rule "for" . -}}
{{- end -}}
{{- with get $own "severity" -}}
{{- $_ := set $rule.labels "severity" . -}}
{{- end -}}
{{- with $given.runbookUrl -}}
{{- $_ := set $rule.annotations "runbook_url" (printf "%s#%s" . (lower $rule.alert)) -}}
{{- end -}}
{{- $isOfUse := not (and (eq $rule.alert "AfterwordStateLarge") (not $.Values.segmenter.enabled)) -}}
{{- if and (dig "enabled" true $own) $isOfUse $rule.expr -}}
{{- $rules = append $rules $rule -}}
{{- end -}}
{{- end -}}
{{- toYaml $rules -}}
{{- end }}
